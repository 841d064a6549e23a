"""Fixture text and demo prompts: seeded, worked, and disjoint between training and evaluation."""

from __future__ import annotations

import pytest

pytest.importorskip("reasoning_gym")

from sgl_dspark.data.sources import prompts
from sgl_dspark.data.split import split_of
from sgl_dspark.demo.fixture_text import WRITERS, conversations


def test_conversations_are_a_function_of_the_seed() -> None:
    first, again, other = (list(conversations(seed, 30)) for seed in (1, 1, 2_000_000))
    assert first == again
    assert len({q for q, _ in first} & {q for q, _ in other}) < 8


def test_every_kind_is_worked_out() -> None:
    pairs = list(conversations(5, len(WRITERS)))
    assert all(len(answer.split()) >= 5 for _, answer in pairs)


def test_chain_sums_are_summed_step_by_step() -> None:
    question, answer = list(conversations(3, 2))[1]
    expression = question.rsplit(": ", 1)[1].removesuffix(" =")
    total = eval(expression)  # noqa: S307
    assert answer.endswith(f"The final answer is {total}.")


def test_split_depends_on_the_template_alone() -> None:
    assert split_of("What is a volcano?") == split_of("What is a volcano?")
    shares = [split_of(chr(0x4E00 + i)) == "held-out" for i in range(5000)]
    assert 0.06 < sum(shares) / len(shares) < 0.10


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split must be one of"):
        next(prompts("test", 0))
