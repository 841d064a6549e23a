"""Packed linear layers compute what plain ones do, follow weight updates, and replace nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("sglang")

from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod

from dspark_sglang import packed_weights
from dspark_sglang.packed_weights import PackedHeadMethod, PackedLinearMethod, pack_weights, renew_weights
from sgl_dspark.errors import ConfigError
from sgl_dspark.model import packed
from sgl_dspark.model.packed import Linear, can_pack, copy_dtype, frozen_linear, padded_rows


class Layer(nn.Module):
    def __init__(self, dtype: torch.dtype, method: object | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(48, 32, generator=generator).to(dtype), requires_grad=False)
        self.quant_method = UnquantizedLinearMethod() if method is None else method


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every packed layer hold a copy, as on a CPU with bf16 kernels, so that a stale one shows on any machine."""

    def frozen(weight: torch.Tensor) -> Linear:
        copy = weight.clone()
        return lambda x: torch.nn.functional.linear(x, copy)

    monkeypatch.setattr(packed_weights, "frozen_linear", frozen)


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack on every CPU, where only speed would speak against it."""
    for module in (packed, packed_weights):
        monkeypatch.setattr(module, "can_pack", lambda weight: True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_packed_layers_compute_what_plain_ones_do(dtype: torch.dtype) -> None:
    layer, method = Layer(dtype), PackedLinearMethod()
    x, bias = torch.randn(5, 32).to(dtype), torch.randn(48).to(dtype)
    wanted = torch.nn.functional.linear(x.float(), layer.weight.float())
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(method.apply(layer, x).float(), wanted, **tolerance)
    torch.testing.assert_close(method.apply(layer, x, bias).float(), wanted + bias.float(), **tolerance)


@pytest.mark.usefixtures("copying")
def test_packed_layers_follow_an_update_once_renewed() -> None:
    layer, x = Layer(torch.float32, PackedLinearMethod()), torch.ones(1, 32)
    before = layer.quant_method.apply(layer, x)
    layer.weight.data.zero_()
    assert torch.equal(layer.quant_method.apply(layer, x), before)
    renew_weights(nn.ModuleList([layer, nn.Linear(2, 2)]))
    assert not layer.quant_method.apply(layer, x).any()


def test_only_plain_layers_of_a_dtype_with_kernels_are_replaced() -> None:
    class Special(UnquantizedLinearMethod):
        pass

    half, special = Layer(torch.float16), Layer(torch.bfloat16, Special())
    plain = [Layer(torch.bfloat16), Layer(torch.float32)]
    size = pack_weights(nn.ModuleList([half, special, *plain, nn.Linear(4, 4)]))
    packed = [can_pack(layer.weight) for layer in plain]
    assert size == 48 * 32 * (copy_dtype(plain[0].weight).itemsize * packed[0] + 4 * packed[1])
    assert [isinstance(layer.quant_method, PackedLinearMethod) for layer in plain] == packed
    assert type(half.quant_method) is UnquantizedLinearMethod
    assert type(special.quant_method) is Special


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_packed_and_an_embedding_stays_one(dtype: torch.dtype, tied: bool) -> None:
    model = nn.Module()
    model.embed_tokens = Layer(dtype, UnquantizedEmbeddingMethod())
    model.lm_head = model.embed_tokens if tied else Layer(dtype, UnquantizedEmbeddingMethod())
    pack_weights(model)
    assert type(model.lm_head.quant_method) is PackedHeadMethod
    assert isinstance(model.embed_tokens.quant_method, PackedHeadMethod) == tied
    ids, x = torch.tensor([3, 7]), torch.randn(5, 32).to(dtype)
    embedded = model.embed_tokens.quant_method.embedding(model.embed_tokens, ids)
    assert torch.equal(embedded, model.embed_tokens.weight[ids])
    # SGLang's own choice between a head's method and a product of its own.
    unbuffered: Any = SimpleNamespace(use_fp32_lm_head=False, use_fp32_lm_head_output=False)
    logits = LogitsProcessor._compute_lm_head(unbuffered, x, model.lm_head)
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), x.float() @ model.lm_head.weight.T.float(), **tolerance)
    model.lm_head.weight.data.zero_()
    renew_weights(model)
    assert not LogitsProcessor._compute_lm_head(unbuffered, x, model.lm_head).any()


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize(
    ("flags", "replaced"),
    [
        ({"use_fp32_lm_head": False, "rl_on_policy_target": None}, True),
        ({"use_fp32_lm_head": True, "rl_on_policy_target": None}, False),
        ({"use_fp32_lm_head": False, "rl_on_policy_target": "fsdp"}, False),
    ],
)
def test_a_head_whose_arithmetic_flags_ask_for_stays_sglangs(flags: dict[str, Any], replaced: bool) -> None:
    model = nn.Module()
    model.lm_head = Layer(torch.bfloat16, UnquantizedEmbeddingMethod())
    model.logits_processor = nn.Module()
    for name, value in flags.items():
        setattr(model.logits_processor, name, value)
    assert bool(pack_weights(model)) == replaced
    assert isinstance(model.lm_head.quant_method, PackedHeadMethod) == replaced


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_a_bf16_weight_is_multiplied_in_fp32_where_a_processor_has_no_bf16(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Rounded once, at the end: no further from the exact product than half a unit in the last place."""
    monkeypatch.setattr(packed, "computes_bf16", lambda device: False)
    weight, x = Layer(torch.bfloat16).weight, torch.randn(rows, 32).bfloat16()
    exact = x.double() @ weight.T.double()
    found = frozen_linear(weight)(x)
    assert found.dtype == torch.bfloat16
    assert found.shape == exact.shape
    assert ((found.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all()
    assert torch.equal(frozen_linear(weight)(x[None])[0], found)


def test_products_come_in_few_sizes_that_waste_little() -> None:
    sizes = {rows: padded_rows(rows) for rows in range(1, 5000)}
    assert all(rows <= size <= max(rows * 1.9, rows + 7) for rows, size in sizes.items())
    assert all(size <= rows * 1.25 for rows, size in sizes.items() if rows > 32)
    assert len(set(sizes.values())) < 80


@pytest.mark.parametrize("rows", [1, 2, 3, 9, 40, 300])
def test_a_frozen_linear_map_of_any_number_of_rows(rows: int) -> None:
    weight, x = Layer(torch.float32).weight, torch.randn(rows, 32)
    torch.testing.assert_close(frozen_linear(weight)(x), torch.nn.functional.linear(x, weight))
    torch.testing.assert_close(frozen_linear(weight)(x[None]), torch.nn.functional.linear(x[None], weight))


def test_packing_can_be_switched_off_and_a_typing_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGL_DSPARK_PACK_WEIGHTS", "0")
    layer = Layer(torch.bfloat16)
    assert pack_weights(nn.ModuleList([layer])) == 0
    assert type(layer.quant_method) is UnquantizedLinearMethod
    monkeypatch.setenv("SGL_DSPARK_PACK_WEIGHTS", "yes")
    with pytest.raises(ConfigError, match="SGL_DSPARK_PACK_WEIGHTS must be 0 or 1, not 'yes'"):
        pack_weights(nn.ModuleList([layer]))


@pytest.mark.usefixtures("copying")
def test_every_way_to_update_weights_renews_them() -> None:
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    from dspark_sglang.hooks import _UPDATES, HOOKS

    loaders = {name for name in vars(WeightUpdater) if name.startswith(("update_weights_from", "load_weights_from"))}
    assert loaders == set(_UPDATES)
    layer = Layer(torch.bfloat16, PackedLinearMethod())
    hook = next(h for h in HOOKS if h.target.endswith(_UPDATES[0]))
    layer.quant_method.apply(layer, torch.randn(1, 32).to(torch.bfloat16))
    updater = SimpleNamespace(get_model=lambda: nn.ModuleList([layer]))
    layer.weight.data.zero_()
    assert hook.function((True, "done"), updater, None) == (True, "done")
    assert not layer.quant_method.apply(layer, torch.ones(1, 32).to(torch.bfloat16)).any()
