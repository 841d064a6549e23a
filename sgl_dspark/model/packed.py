"""Linear layers with weights laid out once for the matrix kernels of this machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_dspark.model.device import computes_bf16

Linear = Callable[[Tensor], Tensor]

# The layout suits every row count; it is chosen for the few rows of a decode step.
_ROWS_HINT = 8


def frozen_linear(weight: Tensor) -> Linear:
    """Return ``x -> x @ weight^T`` for a weight that will not change any more.

    On a CPU with AVX-512 the weight is copied into oneDNN's blocked layout. In bf16 oneDNN otherwise reorders it on
    every call, which doubles the time of a decode step's products (30 layers of 576 features, 8 rows, one thread: 23
    to 14 ms). In fp32 torch otherwise calls MKL, which runs at 40 % of oneDNN's speed on processors of another make
    (AMD Zen 5, one thread, 23.8M weights: 34.6 against 14.5 ms for 64 rows, 6.5 against 3.0 ms for one). A processor
    that has AVX-512 but no bf16 arithmetic converts in every product, so that bf16 takes up to four times as long as
    fp32: there the copy of a bf16 weight is in fp32, and a single row, which is read rather than computed, goes by the
    weight itself (see `_widened`). Elsewhere, and in other dtypes, this is `torch.nn.functional.linear`.

    Parameters
    ----------
    weight : float [out, in]
        Must not change any more: the copy would not.

    Returns
    -------
    callable
        Maps [..., in] to [..., out].
    """
    if not can_pack(weight):
        return lambda x: F.linear(x, weight)
    if copy_dtype(weight) != weight.dtype:
        return _widened(weight)
    return _packed(weight)


def _packed(weight: Tensor) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS_HINT)

    def apply(x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        flat = x.reshape(rows, x.shape[-1])
        wanted = padded_rows(rows)
        if wanted != rows:
            flat = F.pad(flat, (0, 0, 0, wanted - rows))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(flat, packed, None, "none", [], "")
        return product[:rows].view(*x.shape[:-1], weight.shape[0])

    return apply


def _widened(weight: Tensor) -> Linear:
    """Multiply by a bf16 weight in fp32, and round what comes out once, as bf16 kernels do.

    Intel Xeon without bf16, one thread, the products of SmolLM2-135M's layers, bf16 against this: 57 and 41 ms for four
    rows, 144 and 58 for 16, 491 and 121 for 64; for one row 29 and 35.
    """
    wide = _packed(weight.float())

    def apply(x: Tensor) -> Tensor:
        if x.numel() == x.shape[-1]:
            return F.linear(x, weight)
        return wide(x.float()).to(weight.dtype)

    return apply


def padded_rows(rows: int) -> int:
    """Return how many rows a product of ``rows`` is computed for: the next of a few sizes.

    oneDNN compiles and keeps code for every number of rows, a third of a millisecond and half a megabyte for each
    weight shape, and forgets the oldest of about a thousand. Verification brings a new number nearly every step.
    """
    if rows <= 8:
        return rows
    step = 8 if rows <= 256 else 64 if rows <= 1024 else 256
    return -(-rows // step) * step


def row_sizes(most: int) -> list[int]:
    """Return the numbers of rows, ascending up to at least ``most``, that products are computed for without padding."""
    sizes = [padded_rows(1)]
    while sizes[-1] < most:
        sizes.append(padded_rows(sizes[-1] + 1))
    return sizes


def can_pack(weight: Tensor) -> bool:
    """Whether `frozen_linear` packs this weight: an fp32 or bf16 matrix on a CPU that has AVX-512."""
    if weight.device.type != "cpu" or weight.ndim != 2 or not torch.backends.mkldnn.is_available():
        return False
    return weight.dtype in (torch.float32, torch.bfloat16) and bool(torch.cpu._is_avx512_supported())


def copy_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of the copy of a weight that `can_pack` accepts: fp32 where a CPU computes nothing in bf16."""
    return weight.dtype if computes_bf16(weight.device) else torch.float32
