"""The target's linear layers and head with weights laid out once for this machine's matrix kernels.

oneDNN reorders a plain bf16 weight on every call, which for the few rows of a decode step takes as long as the product
itself; an fp32 weight goes to MKL, which is slow on processors of another make; and a processor without bf16 arithmetic
converts every weight in every product. So the CPU platform keeps a copy in oneDNN's layout beside each weight.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod

from dspark_sglang.switches import PACKED_WEIGHTS, switched_on
from sgl_dspark.model import packed as packed_linear
from sgl_dspark.model.packed import can_pack, copy_dtype, frozen_linear

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sgl_dspark.model.packed import Linear

logger = logging.getLogger(__name__)


class _Packed:
    """A product with a packed copy of a layer's weight; who changes the weight calls `renew_weights` afterwards."""

    _linear: Linear | None = None

    def renew(self) -> None:
        """Forget the copy; the next call makes another one from the layer's weight."""
        self._linear = None

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight^T + bias`` for x [..., in]."""
        if self._linear is None:
            self._linear = frozen_linear(layer.weight.detach())
        product = self._linear(x)
        return product if bias is None else product + bias


class PackedLinearMethod(_Packed, UnquantizedLinearMethod):
    """SGLang's unquantised linear layer, computed from a packed copy of its weight."""


class PackedHeadMethod(_Packed, UnquantizedEmbeddingMethod):
    """SGLang's unquantised head, which may be the embedding too; SGLang asks a method of another name than its own."""

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight^T + bias`` for x [..., d], in the weight's dtype like SGLang's own product."""
        return super().apply(layer, x.to(layer.weight.dtype), bias)


def pack_weights(model: nn.Module) -> int:
    """Pack every unquantised fp32 or bf16 linear layer of a model, and its ``lm_head``.

    Returns
    -------
    int
        Bytes that the copies take; 0 where packing brings nothing or is switched off.
    """
    if not switched_on(PACKED_WEIGHTS):
        return 0
    size = 0
    head = None if _head_has_its_own_arithmetic(model) else getattr(model, "lm_head", None)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        # Exactly these classes: a subclass computes something else.
        kind = type(getattr(module, "quant_method", None))
        replaced = kind is UnquantizedLinearMethod or (module is head and kind is UnquantizedEmbeddingMethod)
        if replaced and isinstance(weight, torch.Tensor) and can_pack(weight):
            module.quant_method = PackedLinearMethod() if kind is UnquantizedLinearMethod else PackedHeadMethod()
            size += weight.numel() * copy_dtype(weight).itemsize
    if size:
        logger.info("packed %.0f MB of weights for oneDNN; %s=0 saves the memory", size / 1e6, PACKED_WEIGHTS)
    return size


def _head_has_its_own_arithmetic(model: nn.Module) -> bool:
    """Whether flags ask for a head in fp32 or as a trainer computes it: SGLang asks the head's method first."""
    processor = getattr(model, "logits_processor", None)
    return bool(
        getattr(processor, "use_fp32_lm_head", False) or getattr(processor, "rl_on_policy_target", None) is not None
    )


def row_sizes(model: nn.Module, most: int) -> list[int] | None:
    """Return the numbers of rows, up to ``most`` or just above, that a model's packed layers compute without padding.

    None if it has no packed layer.
    """
    packed = any(isinstance(getattr(module, "quant_method", None), PackedLinearMethod) for module in model.modules())
    return packed_linear.row_sizes(most) if packed else None


def renew_weights(model: nn.Module) -> None:
    """Make every packed layer of a model read its weight again, after an update of weights while serving."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, _Packed):
            method.renew()
