"""Every figure of a run against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_loadtest.plan import Outcome
from dspark_loadtest.reconcile import Counts, read_settled, reconcile
from dspark_loadtest.record import LEFT, RequestRecord
from dspark_loadtest.stats import Slo, accounting, series, summarise, tokens_between, under_way
from tests.support.records import answered

# Sent at 1 (due at 0.5), first chunk of 2 tokens at 2, then 3 at 2.5 and 4 at 4.
ONE = answered(0, 1.0, [(2.0, 2), (2.5, 3), (4.0, 4)], due=0.5)


def test_figures_of_one_request() -> None:
    assert ONE.send_lag_s == 0.5
    assert ONE.ttft_s == 1.0
    assert ONE.ttft_due_s == 1.5
    # Seven tokens after the first chunk, in two seconds.
    assert ONE.tpot_s == pytest.approx(2 / 7)
    assert ONE.tok_s_user == pytest.approx(3.5)
    assert (ONE.latency_s, ONE.latency_due_s) == (3.0, 3.5)


def test_an_answer_in_one_chunk_has_no_rate() -> None:
    assert answered(0, 0, [(1.0, 5)]).tpot_s is None


def test_without_running_usage_the_first_chunk_is_one_token() -> None:
    record = answered(0, 0, [(1.0, 0), (3.0, 0)], seen_tokens=0, completion_tokens=5)
    assert record.tpot_s == pytest.approx(0.5)
    # Five tokens evenly over [1, 3]: two fifths of the time, two tokens.
    assert tokens_between([record], 1.2, 2.0) == pytest.approx(2.0)


def test_percentiles_are_linear_between_neighbours() -> None:
    found = series([4.0, 1.0, None, 3.0, 2.0])
    assert found is not None
    assert (found["count"], found["mean"], found["min"], found["max"]) == (4, 2.5, 1.0, 4.0)
    assert found["p50"] == 2.5
    assert found["p90"] == pytest.approx(3.7)
    assert series([None]) is None


def test_tokens_count_where_they_arrive() -> None:
    assert tokens_between([ONE], 0, 10) == 9
    assert tokens_between([ONE], 2.0, 4.0) == 5
    assert tokens_between([ONE], 2.1, 2.5) == 0


def test_concurrency_is_time_under_way_over_time() -> None:
    other = answered(1, 3.0, [(5.0, 1)])
    # ONE is under way during [1, 4], the other during [3, 5].
    assert under_way([ONE, other], 2.0, 4.0) == pytest.approx((2 + 1) / 2)
    assert under_way([ONE], 2.0, 2.0) is None


def _outcome(*records: RequestRecord) -> Outcome:
    return Outcome(list(records), wall_s=10.0, cpu_s=1.0, steady=(0.0, 5.0))


def test_speculation_is_pooled_by_counts() -> None:
    few = answered(1, 0, [(1, 1), (2, 8)], verify_rounds=1, correct_drafts=7, proposed_drafts=7)
    many = answered(2, 0, [(1, 1), (2, 9)], verify_rounds=9, correct_drafts=0, proposed_drafts=63, verify_tokens=18)
    spec = summarise(_outcome(few, many, ONE), Slo())["speculation"]
    # 7 of 10 rounds' drafts, not the mean of 7 and 0; verified: 8 of the first, which does not tell, and 18.
    assert spec["mean_accept_len"] == pytest.approx(1.7)
    assert spec["mean_verify_len"] == pytest.approx(2.6)
    assert spec["requests"] == 2


def test_goodput_needs_an_answer_in_time_and_at_speed() -> None:
    slow_start = answered(1, 0, [(3.0, 1), (4.0, 9)])
    slow = answered(2, 0, [(0.5, 1), (5.5, 9)])
    broken = answered(3, 0, [(0.1, 1), (0.2, 9)], outcome="disconnect")
    short = answered(4, 0, [(0.1, 1)])
    summary = summarise(_outcome(ONE, slow_start, slow, broken, short), Slo(ttft_s=2.0, tok_s_user=3.0))
    assert summary["goodput"]["share"] == pytest.approx(2 / 5)
    assert summary["goodput"]["tok_s"] == pytest.approx((9 + 1) / 10)
    assert summary["requests"]["outcomes"] == {"disconnect": 1, "ok": 4}
    assert summary["output_tok_s"] == pytest.approx((9 + 10 + 1 + 10 + 1) / 5)


def test_tokens_that_do_not_add_up_are_counted() -> None:
    lost = answered(1, 0, [(1, 1), (2, 3)], seen_tokens=5, completion_tokens=5)
    back = answered(2, 0, [(1, 2)], went_back=True)
    silent = answered(3, 0, [(1, 2)], completion_tokens=3, asked_output=3)
    early = answered(4, 0, [(1, 2)], asked_output=8)
    assert accounting([ONE, lost, back, silent, early]) == {
        "usage_went_back": 1,
        "tokens_without_text": 1,
        "chunks_do_not_add_up": 1,
        "stopped_at_other_length": 2,
        "without_running_usage": 0,
    }


def _metrics(tokens: float, prompts: float, requests: float, aborted: float = 0) -> dict[str, float]:
    names = ("generation_tokens_total", "prompt_tokens_total", "num_requests_total", "num_aborted_requests_total")
    return dict(zip(names, (tokens, prompts, requests, aborted), strict=True))


@pytest.mark.parametrize(("server", "agrees"), [(9, True), (8, False), (10, False)])
def test_totals_must_be_equal_when_all_was_answered(server: float, agrees: bool) -> None:
    found = reconcile(Counts(_metrics(100, 50, 3), None), Counts(_metrics(100 + server, 60, 4), None), [ONE])
    assert found["completion"]["agrees"] is agrees
    assert found["prompt"] == {"answered": 10, "server": 10, "agrees": True}


@pytest.mark.parametrize(("server", "agrees"), [(10, False), (11, True), (29, True), (30, False)])
def test_an_answer_that_was_left_lies_between_seen_and_allowed(server: float, agrees: bool) -> None:
    left = answered(1, 0, [(1, 2)], outcome=LEFT, asked_output=20)
    found = reconcile(Counts(_metrics(0, 0, 0), None), Counts(_metrics(server, 40, 2), None), [ONE, left])
    assert found["completion"]["agrees"] is agrees
    assert (found["completion"]["client_least"], found["completion"]["client_most"]) == (11, 29)


@pytest.mark.parametrize(
    ("server", "retracted", "agrees"),
    [(21, 0, False), (22, 0, True), (23, 0, True), (24, 0, False), (24, 1, True), (60, 0, False)],
)
def test_what_an_aborted_answer_generated_is_held_against_the_worker(
    server: float, retracted: float, agrees: bool
) -> None:
    """Seen and allowed are 11 and 109 tokens; the worker knows of 20 in rounds, beside a token of each prefill."""
    left = answered(1, 0, [(1, 2)], outcome=LEFT, asked_output=50, finish_reason="")
    unseen = RequestRecord(2, sent=0.5, end=1.0, outcome=LEFT, asked_output=50)
    after = {**_metrics(server, 40, 3), "num_retracted_requests_total": retracted}
    sides = Counts(_metrics(0, 0, 0), {"tokens": 5}), Counts(after, {"tokens": 25})
    found = reconcile(*sides, [ONE, left, unseen])["completion"]
    assert (found["client_least"], found["client_most"]) == (11, 109)
    assert (found["worker_least"], found["worker_most"]) == (22, 23 + retracted)
    assert found["agrees"] is agrees
    # A round may hold tokens beyond the end of an answer that ended by itself: then the worker cannot tell.
    ended = answered(3, 0, [(1, 2)], finish_reason="stop")
    assert "worker_least" not in reconcile(*sides, [ONE, left, unseen, ended])["completion"]


def test_rounds_of_both_sides_are_compared() -> None:
    one = answered(0, 0, [(1, 1)], verify_rounds=4, correct_drafts=6)
    before, after = {"live_rounds": 10, "drafts_accepted": 1}, {"live_rounds": 14, "drafts_accepted": 7}
    assert reconcile(Counts(None, before), Counts(None, after), [one])["dspark"]["agrees"] is True
    assert reconcile(Counts(None, before), Counts(None, before), [one])["dspark"]["agrees"] is False


def test_counters_are_read_until_every_request_is_counted() -> None:
    class Lagging:
        def __init__(self) -> None:
            self.asked = 0

        def metrics(self) -> dict[str, float]:
            self.asked += 1
            return _metrics(9, 10, 1 if self.asked == 3 else 0)

        def totals(self) -> None:
            return None

    endpoint: Any = Lagging()
    waits: list[float] = []
    after = read_settled(endpoint, Counts(_metrics(0, 0, 0), None), [ONE], wait=waits.append)
    assert after.metrics is not None
    assert after.metrics["num_requests_total"] == 1
    assert len(waits) == 2
