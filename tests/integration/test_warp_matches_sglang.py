"""The warped law against the function that stock SGLang draws with on its pytorch backend."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgl_dspark.sampling.warp import target_probs

pytest.importorskip("sglang")
from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch
from sglang.srt.sampling.sampling_params import TOP_K_ALL, SamplingParams

VOCAB = 700


def stock_law(logits: Tensor, parsed: list[SamplingParams]) -> Tensor:
    """Return the weights stock SGLang would hand to multinomial, in vocabulary order and normalised."""
    temperatures = torch.tensor([p.temperature for p in parsed])
    _, weights, ids, _ = top_k_top_p_min_p_sampling_from_probs_torch(
        (logits / temperatures[:, None]).softmax(-1),
        torch.tensor([p.top_k for p in parsed], dtype=torch.int32),
        torch.tensor([p.top_p for p in parsed]),
        torch.tensor([p.min_p for p in parsed]),
        any(p.min_p > 0 for p in parsed),
        None,
        torch.zeros(len(parsed), dtype=torch.int64),
        return_filtered_probs=True,
    )
    law = torch.zeros_like(weights).scatter_(1, ids.long(), weights)
    return law / law.sum(-1, keepdim=True)


def check(logits: Tensor, requested: list[dict[str, float]]) -> None:
    parsed = [SamplingParams(**r) for r in requested]  # type: ignore[arg-type]
    want = stock_law(logits, parsed)
    got = target_probs(
        logits,
        torch.tensor([float(r["temperature"]) for r in requested]),
        torch.tensor([p.top_k for p in parsed]),
        torch.tensor([p.top_p for p in parsed]),
        torch.tensor([p.min_p for p in parsed]),
    )
    # Beyond the cut that rounding of a cumulative sum near 1 makes upstream, supports must be equal.
    different = (got > 0) != (want > 0)
    assert float(got[different].sum() + want[different].sum()) < 1e-6
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
    cut_below_one = torch.tensor([p.top_p < 1 for p in parsed])
    assert not different[cut_below_one].any()


def renormalised_between(law: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Filter one row [V] in the order of SGLang's flashinfer backend: each set is taken of what the last one left."""
    law, ids = law.double().sort(descending=True)
    law[top_k:] = 0
    law /= law.sum()
    law[law.cumsum(0) - law > top_p] = 0
    law /= law.sum()
    law[law < min_p * law[0]] = 0
    return torch.zeros_like(law).scatter_(0, ids, law / law.sum())


def test_flashinfers_order_is_another_law() -> None:
    """Why `dspark serve` sets the pytorch sampler on CUDA: a first token by one law and the rest by another."""
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    request = {"temperature": 1.0, "top_k": 20, "top_p": 0.8, "min_p": 0.02}
    check(logits, [request])
    one = [torch.tensor([v]) for v in request.values()]
    ours = target_probs(logits, *one)[0].double()
    other = renormalised_between(logits.softmax(-1)[0], 20, 0.8, 0.02)
    assert float((ours - other).abs().sum()) / 2 > 0.1


REQUEST = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([-1, 1, 2, 20, 300, VOCAB, VOCAB + 5, TOP_K_ALL]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
        "min_p": st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    }
)


@settings(max_examples=150, deadline=None)
@given(requested=st.lists(REQUEST, min_size=1, max_size=5), seed=st.integers(0, 10**6))
def test_mixed_batches_have_the_stock_law(requested: list[dict[str, float]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(len(requested), 1, generator=generator) * 4
    check(torch.randn(len(requested), VOCAB, generator=generator) * scale, requested)


@pytest.mark.parametrize(
    "request_params",
    [
        {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.0},
        {"temperature": 0.8, "top_k": -1, "top_p": 0.95, "min_p": 0.0},
        {"temperature": 1.0, "top_k": 5000, "top_p": 1.0, "min_p": 0.0},
    ],
)
def test_real_vocabulary_size(request_params: dict[str, float]) -> None:
    logits = torch.randn(4, 49152, generator=torch.Generator().manual_seed(5)) * 2
    check(logits, [request_params] * 4)
