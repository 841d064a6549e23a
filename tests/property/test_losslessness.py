"""Exact losslessness: the joint law of what draft-and-verify emits, by enumeration, against the target's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgl_dspark.sampling.exact import (
    Round,
    draft_tables,
    is_non_anticipating,
    max_abs_difference,
    output_law,
    target_law,
)
from sgl_dspark.sampling.rejection import acceptance_probability, residual_law
from tests.support import verify_rules as rules
from tests.support.tiny_draft import HEADS, TinyDrafter

ROUNDING = 1e-12
SIZES = [(2, 1, 1), (2, 2, 1), (2, 3, 1), (3, 2, 1), (5, 2, 1), (2, 2, 2), (3, 2, 2), (2, 3, 2), (2, 1, 3)]
"""(V, gamma, R)."""


def fp64(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def a_round(
    kind: str,
    vocab_size: int,
    gamma: int,
    seed: int,
    *,
    temperature: float = 1.0,
    shortlist: int | None = None,
    proposes: list[int] | None = None,
    target_top_k: int | None = None,
) -> Round:
    """Make one request from a real head with random weights and a random target that knows nothing of it."""
    generator = torch.Generator().manual_seed(seed)
    drafter = TinyDrafter(kind, vocab_size=vocab_size, seed=seed, dtype=torch.float64, proposes=proposes)
    anchor = int(torch.randint(vocab_size, (), generator=generator))
    draft, confidences = draft_tables(drafter, fp64(gamma, 6, generator=generator), anchor, temperature, shortlist)
    target = []
    for i in range(gamma + 1):
        law = (2 * fp64(vocab_size**i, vocab_size, generator=generator)).softmax(1)
        if target_top_k is not None:
            law = torch.zeros_like(law).scatter_(1, *reversed(law.topk(min(target_top_k, vocab_size), 1)))
        target.append(law / law.sum(1, keepdim=True))
    return Round(draft, tuple(target), confidences)


@st.composite
def steps(draw: Callable[..., object]) -> list[Round]:
    vocab_size, gamma, requests = draw(st.sampled_from(SIZES))  # type: ignore[misc]
    return [
        a_round(
            draw(st.sampled_from(HEADS)),  # type: ignore[arg-type]
            vocab_size,
            gamma,
            draw(st.integers(0, 10**6)),  # type: ignore[arg-type]
            temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),  # type: ignore[arg-type]
            shortlist=draw(st.sampled_from([None, *range(1, vocab_size + 1)])),  # type: ignore[arg-type]
            proposes=draw(st.sampled_from([None, [0], [0, vocab_size - 1]])),  # type: ignore[arg-type]
            target_top_k=draw(st.sampled_from([None, 1, 2])),  # type: ignore[arg-type]
        )
        for _ in range(requests)
    ]


@settings(max_examples=120, deadline=None)
@given(step=steps(), data=st.data())
def test_any_fixed_or_mixed_lengths(step: list[Round], data: st.DataObject) -> None:
    lens = [data.draw(st.integers(1, one.gamma + 1)) for one in step]
    assert max_abs_difference(step, rules.fixed(lens)) < ROUNDING


@settings(max_examples=80, deadline=None)
@given(step=steps(), theta=st.floats(0, 1))
def test_threshold_on_own_confidences(step: list[Round], theta: float) -> None:
    assert is_non_anticipating(step, rules.threshold(theta))
    assert max_abs_difference(step, rules.threshold(theta)) < ROUNDING


@settings(max_examples=80, deadline=None)
@given(step=steps(), data=st.data())
def test_algorithm_1_over_any_speed_table(step: list[Round], data: st.DataObject) -> None:
    most = len(step) * (step[0].gamma + 1)
    sps = data.draw(st.lists(st.floats(0.05, 1.0), min_size=most + 1, max_size=most + 1))
    rule = rules.throughput(sps, early_stop=True)
    assert is_non_anticipating(step, rule)
    assert max_abs_difference(step, rule) < ROUNDING


@settings(max_examples=80, deadline=None)
@given(step=steps(), budget=st.integers(0, 6))
def test_budget_fixed_from_outside_ranked_by_current_survival(step: list[Round], budget: int) -> None:
    assert is_non_anticipating(step, rules.top(budget))
    assert max_abs_difference(step, rules.top(budget)) < ROUNDING


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("shortlist", [1, 2, 3, 4])
def test_every_head_and_shortlist_at_full_length(kind: str, shortlist: int) -> None:
    one = a_round(kind, 4, 2, 11, shortlist=shortlist)
    assert sum(int((law > 0).sum()) for law in one.draft) == shortlist * (1 + 4)
    assert max_abs_difference([one], rules.fixed([3])) < ROUNDING


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("proposes", "shortlist", "kept"), [([1, 3], None, 2), ([0, 2, 3], 2, 2), ([2], None, 1)])
def test_every_head_with_a_draft_vocabulary(kind: str, proposes: list[int], shortlist: int | None, kept: int) -> None:
    one = a_round(kind, 4, 2, 12, shortlist=shortlist, proposes=proposes)
    for law in one.draft:
        assert ((law > 0).sum(1) == kept).all()
        assert not law[:, [v for v in range(4) if v not in proposes]].any()
    assert max_abs_difference([one], rules.fixed([3])) < ROUNDING


def appendix_a() -> Round:
    """Two tokens; a first draft of 0 makes slot 1 look good, a first draft of 1 makes it look worthless."""
    half, target = torch.full((2,), 0.5, dtype=torch.float64), torch.tensor([0.7, 0.3], dtype=torch.float64)
    return Round(
        draft=(half.expand(1, 2), half.expand(2, 2)),
        target=tuple(target.expand(2**i, 2) for i in range(3)),
        confidences=(torch.tensor([0.8], dtype=torch.float64), torch.tensor([0.9, 0.0], dtype=torch.float64)),
    )


APPENDIX_SPS = [float("nan"), 1.0, 0.5, 0.45]


def test_appendix_a_retrospective_search_is_caught() -> None:
    step, rule = [appendix_a()], rules.throughput(APPENDIX_SPS, early_stop=False)
    first = output_law(step, rule).view(2, 4).sum(1)
    torch.testing.assert_close(first, torch.tensor([0.85, 0.15], dtype=torch.float64))
    assert max_abs_difference(step, rule) > 0.05
    assert not is_non_anticipating(step, rule)


def test_appendix_a_early_stop_is_lossless() -> None:
    step, rule = [appendix_a()], rules.throughput(APPENDIX_SPS, early_stop=True)
    first = output_law(step, rule).view(2, 4).sum(1)
    torch.testing.assert_close(first, torch.tensor([0.7, 0.3], dtype=torch.float64))
    assert max_abs_difference(step, rule) < ROUNDING
    assert is_non_anticipating(step, rule)


@pytest.mark.parametrize("kind", HEADS)
def test_biased_acceptance_is_caught(kind: str) -> None:
    step = [a_round(kind, 3, 2, 21)]

    def eager(target_p: Tensor, draft_p: Tensor) -> Tensor:
        return acceptance_probability(1.1 * target_p, draft_p)

    assert max_abs_difference(step, rules.fixed([3]), acceptance=eager) > 1e-3


@pytest.mark.parametrize("kind", HEADS)
def test_replacement_from_the_target_is_caught(kind: str) -> None:
    step = [a_round(kind, 3, 2, 22)]

    def lazy(target_row: Tensor, draft_row: Tensor) -> tuple[Tensor, Tensor]:
        return target_row, torch.zeros(len(target_row), dtype=torch.bool)

    assert max_abs_difference(step, rules.fixed([3]), residual=lazy) > 1e-3


def test_a_draft_law_that_is_not_the_one_drawn_from_is_caught() -> None:
    # Drawing in one precision and accepting in another, as the released code does.
    step = [a_round("vanilla", 3, 2, 23)]

    def rounded(target_p: Tensor, draft_p: Tensor) -> Tensor:
        return acceptance_probability(target_p, draft_p.bfloat16().double())

    assert max_abs_difference(step, rules.fixed([3]), acceptance=rounded) > 1e-5


def test_laws_are_laws() -> None:
    step = [a_round("rnn", 3, 2, 24), a_round("gated", 3, 2, 25)]
    for law in (target_law(step), output_law(step, rules.fixed([2, 3]))):
        assert law.shape == (27, 27)
        assert law.min() >= 0
        assert abs(float(law.sum()) - 1) < ROUNDING


def test_lengths_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.\.3"):
        output_law([a_round("none", 2, 2, 1)], rules.fixed([4]))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), vocab_size=st.integers(1, 40), shortlist=st.integers(1, 40))
def test_acceptance_identity(seed: int, vocab_size: int, shortlist: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = (3 * fp64(1, vocab_size, generator=generator)).softmax(1)
    kept, ids = fp64(1, vocab_size, generator=generator).topk(min(shortlist, vocab_size), 1)
    draft = torch.zeros_like(target).scatter_(1, ids, kept.softmax(1))
    accepted = (draft * acceptance_probability(target, draft)).sum()
    overlap = torch.minimum(target, draft).sum()
    torch.testing.assert_close(accepted, overlap)
    torch.testing.assert_close(overlap, 1 - (target - draft).abs().sum() / 2)
    # What is accepted plus what is replaced is the target.
    law, empty = residual_law(target, draft)
    torch.testing.assert_close(draft * acceptance_probability(target, draft) + (1 - accepted) * law, target)
    listed, _ = residual_law(target, kept.softmax(1), ids)
    torch.testing.assert_close(listed, law)
    assert not empty.any() or float(1 - accepted) < ROUNDING
