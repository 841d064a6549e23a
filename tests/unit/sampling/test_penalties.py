"""Penalties at every row of a block, against the definition taken row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_dspark.sampling.penalties import Penalties, penalise_rows, penalised, repeats_before

V = 9
coefficient = st.sampled_from([0.0, 0.5, 1.25, -0.75])


def by_definition(row: torch.Tensor, text: list[int], frequency: float, presence: float, repetition: float) -> Any:
    found = row.clone()
    for token in range(V):
        count = text.count(token)
        if count:
            value = row[token] - frequency * count - presence
            found[token] = value * repetition if value < 0 else value / repetition
    return found


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_rows_see_the_answer_and_the_drafts_before_them(data: st.DataObject) -> None:
    count, gamma = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    tokens = st.integers(0, V - 1)
    answers = [data.draw(st.lists(tokens, min_size=1, max_size=6)) for _ in range(count)]
    drafts = [data.draw(st.lists(tokens, min_size=gamma, max_size=gamma)) for _ in range(count)]
    lens = [data.draw(st.integers(1, gamma + 1)) for _ in range(count)]
    given_ = [
        (data.draw(coefficient), data.draw(coefficient), data.draw(st.sampled_from([1.0, 1.3, 0.6])))
        for _ in range(count)
    ]
    # Rows of a request that is not penalised lie between the others'.
    owners, depths = [], []
    for i in range(count):
        owners += [i] * lens[i]
        depths += range(lens[i])
    rows = torch.arange(len(owners)) * 2
    logits = torch.randn(2 * len(owners), V, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    before, longest = logits.clone(), max(map(len, answers))
    padded = torch.tensor([a + [a[0]] * (longest - len(a)) for a in answers])
    counts = torch.stack([torch.bincount(torch.tensor(a), minlength=V) for a in answers])
    penalties = Penalties(*(torch.tensor(column) for column in zip(*given_, strict=True)))
    penalise_rows(
        logits,
        rows,
        torch.tensor(owners),
        torch.tensor(depths),
        padded,
        counts,
        torch.tensor(drafts, dtype=torch.int64).view(count, gamma),
        penalties,
    )
    for row, owner, depth in zip(rows.tolist(), owners, depths, strict=True):
        expected = by_definition(before[row], answers[owner] + drafts[owner][:depth], *given_[owner])
        torch.testing.assert_close(logits[row], expected)
    torch.testing.assert_close(logits[1::2], before[1::2], rtol=0, atol=0)


def test_worked_example() -> None:
    """Twice "3": (1 - 0.5 * 2 - 0.25) * 2 = -0.5; "4" once: (3 - 0.5 - 0.25) / 2; "5" not at all."""
    penalties = Penalties(torch.tensor([0.5]), torch.tensor([0.25]), torch.tensor([2.0]))
    found = penalised(torch.tensor([[1.0, 3.0, -7.0]]), torch.tensor([[2, 1, 0]]), penalties)
    assert found.tolist() == [[-0.5, 1.125, -7.0]]


def test_repeats_are_counted_before_each_slot() -> None:
    found = repeats_before(torch.tensor([[7, 5]]), torch.tensor([[5, 7, 5]]))
    assert found.tolist() == [[[0, 0], [0, 1], [1, 1], [1, 2]]]


@pytest.mark.parametrize("value", [float("-inf"), 0.0])
def test_banned_and_zero_logits_stay_numbers(value: float) -> None:
    penalties = Penalties(torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([1.5]))
    assert penalised(torch.tensor([[value]]), torch.tensor([[3]]), penalties).tolist() == [[value]]
