"""The arithmetic of every figure, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_sglang.bench.metrics import (
    RequestResult,
    merge_histograms,
    paired_ratios,
    run_metrics,
)
from sgl_dspark.comparison import Spread, schedule, spread


def _result(prompt: int, start: float, first: float, end: float, tokens: int, **counters: object) -> RequestResult:
    return RequestResult(prompt, start, first, end, 10, tokens, "length", "text", **counters)  # type: ignore[arg-type]


TWO = [_result(0, 100.0, 101.0, 105.0, 9), _result(1, 101.0, 104.0, 110.0, 19)]


def test_throughput_and_rates_without_speculation() -> None:
    metrics = run_metrics(TWO)
    assert metrics["tok_s"] == pytest.approx(28 / 10)
    assert metrics["tok_s_user"] == pytest.approx((8 / 4 + 18 / 6) / 2)
    assert metrics["tok_s_user_e2e"] == pytest.approx((9 / 5 + 19 / 9) / 2)
    assert metrics["ttft_ms"] == pytest.approx(2000)
    assert metrics["mean_accept_len"] is None
    assert metrics["emitted_per_round"] is None


def test_accept_length_weighs_rounds_not_requests() -> None:
    results = [
        replace(TWO[0], verify_rounds=8, correct_drafts=0),
        replace(TWO[1], verify_rounds=2, correct_drafts=14),
    ]
    metrics = run_metrics(results)
    # The mean of the two requests' lengths would be (1 + 8) / 2 = 4.5.
    assert metrics["mean_accept_len"] == pytest.approx(1 + 14 / 10)
    # 16 would be emitted in full, 18 + 8 = 26 tokens came: the counters, not the tokens, decide.
    assert metrics["emitted_per_round"] == pytest.approx(26 / 10)


def test_a_request_without_rounds_does_not_count_towards_the_accept_length() -> None:
    results = [replace(TWO[0], verify_rounds=4, correct_drafts=4), replace(TWO[1], verify_rounds=0, correct_drafts=0)]
    assert run_metrics(results)["mean_accept_len"] == pytest.approx(2)


def test_answers_of_one_token_have_no_decoding_rate() -> None:
    single = _result(0, 0.0, 2.0, 2.0, 1)
    assert run_metrics([single])["tok_s_user"] is None
    assert run_metrics([single, TWO[0]])["tok_s_user"] == pytest.approx(2)
    assert run_metrics([single])["tok_s_user_e2e"] == pytest.approx(0.5)


def test_spread_is_median_and_range_in_the_order_of_rounds() -> None:
    assert spread([3.0, 1.0, 5.0, 2.0]) == Spread(2.5, 1.0, 5.0, (3.0, 1.0, 5.0, 2.0))
    assert spread([]) is None


def test_ratios_pair_rounds_and_skip_what_is_missing() -> None:
    assert paired_ratios({0: 10.0, 1: 20.0, 2: 0.0}, {1: 30.0, 0: 12.0, 2: 5.0, 3: 9.0}) == [1.2, 1.5]


def test_histograms_of_different_lengths_add_up() -> None:
    assert merge_histograms([[1, 2], [], [3, 0, 4]]) == [4, 2, 4]
    assert merge_histograms([]) == []


@pytest.mark.parametrize(
    ("arms", "rounds", "order"),
    [(2, 1, "AB"), (2, 3, "ABBAAB"), (3, 2, "ABCCBA"), (1, 2, "AA")],
)
def test_arms_alternate(arms: int, rounds: int, order: str) -> None:
    turns = schedule(arms, rounds)
    assert "".join("ABC"[arm] for _, arm in turns) == order
    assert [round_ for round_, _ in turns] == [r for r in range(rounds) for _ in range(arms)]
