"""Rounds are counted as the reference protocol says."""

from __future__ import annotations

import pytest

from sgl_dspark.evaluation.report import Round, round_of, summarise


def test_an_accepted_end_of_turn_ends_the_round_without_a_bonus() -> None:
    assert round_of([5, 2, 9], 3, [2]) == Round(num_correct_drafts=2, proposed=2, emitted=2)


def test_a_rejected_end_of_turn_counts_like_any_other_draft() -> None:
    assert round_of([5, 2, 9], 1, [2]) == Round(num_correct_drafts=1, proposed=3, emitted=2)


def test_a_whole_block_gives_gamma_plus_one_tokens() -> None:
    assert round_of([5, 6, 9], 3, [2]).emitted == 4


def test_summary_by_hand() -> None:
    rounds = [Round(0, 3, 1), Round(1, 3, 2), Round(3, 3, 4), Round(2, 2, 2)]
    found = summarise(rounds, 3)
    assert found.rounds == 4
    # (1 + 2 + 4 + 2) / 4
    assert found.mean_accept_len == pytest.approx(2.25)
    # Slot 0: 3 of 4. Slot 1: 2 of 4. Slot 2: 1 of the 3 that proposed it.
    assert found.survival == pytest.approx((0.75, 0.5, 1 / 3))
    # Of those that reached it: 3 of 4, 2 of 3, 1 of 1.
    assert found.conditional == pytest.approx((0.75, 2 / 3, 1.0))


def test_verified_tokens_count_the_anchor_and_nothing_behind_an_end_of_turn() -> None:
    assert summarise([Round(0, 3, 1), Round(2, 2, 2)], 3).mean_verify_len == pytest.approx(3.5)


def test_no_rounds_give_zeros() -> None:
    assert summarise([], 2).mean_accept_len == 0.0
