"""What was asked and not answered: it fails the run, stays in its figures, and never becomes a point of a frontier."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_loadtest.mock.script import Script
from dspark_loadtest.plan import Outcome, Plan
from dspark_loadtest.record import RequestRecord
from dspark_loadtest.session import Workload, problems
from dspark_loadtest.stats import Slo, summarise
from dspark_loadtest.traces.request import Trace, TraceRequest
from tests.support.records import answered
from tests.support.virtual_time import replay


def waiting(count: int, gap_s: float, output: int = 10) -> Trace:
    """Make requests at equal distances."""
    return Trace(tuple(TraceRequest(1e3 * gap_s * i, 20, output) for i in range(count)))


def judged(outcome: Outcome, workload: Workload) -> tuple[dict[str, Any], list[str]]:
    """Summarise as a run does whose server exports no counters."""
    summary = {**summarise(outcome, Slo()), "reconciliation": {}, "prefix_cache": "emptied"}
    return summary, problems(summary, workload)


def test_what_is_open_when_the_run_waits_no_longer_is_a_failure() -> None:
    # One answer at a time, each of a second: the third and the fourth come after the second of waiting.
    script = Script(ttft_s=0.1, tpot_s=0.1, concurrency=1)
    trace = waiting(4, 0.1)
    outcome, _ = replay(script, trace, Plan(drain_s=2.0))
    assert [record.outcome for record in outcome.records] == ["ok", "ok", "unanswered", "unanswered"]
    assert "2 s after the last request was due" in outcome.records[3].message
    summary, found = judged(outcome, Workload(trace))
    assert summary["requests"]["failed"] == summary["requests"]["given_up"] == 2
    assert any("2 of 4 requests failed (2 unanswered), above the bound of 0.0%" in problem for problem in found)


def test_ctrl_c_is_no_failure_of_the_server() -> None:
    outcome, _ = replay(Script(ttft_s=0.1, tpot_s=0.1, concurrency=1), waiting(4, 0.1), Plan(), stop_at=1.5)
    assert {record.outcome for record in outcome.records} == {"ok", "interrupted"}
    assert summarise(outcome, Slo())["requests"]["failed"] == 0


def test_a_turn_that_is_due_long_after_the_others_is_waited_for() -> None:
    turns = (TraceRequest(0, 20, 5, session_id="a"), TraceRequest(60_000, 40, 5, session_id="a"))
    outcome, _ = replay(Script(), Trace(turns), Plan(drain_s=5.0))
    assert [record.outcome for record in outcome.records] == ["ok", "ok"]


@pytest.mark.parametrize(("bound", "fails"), [(0.0, True), (0.4, True), (0.5, False), (1.0, False)])
def test_failures_above_the_bound_fail_the_run(bound: float, fails: bool) -> None:
    trace = waiting(6, 0.5)
    outcome, _ = replay(Script(fault="error", fault_every=2), trace, Plan())
    _, found = judged(outcome, Workload(trace, max_failed=bound))
    assert any("3 of 6 requests failed (3 stream_500)" in problem for problem in found) is fails


def test_who_was_given_up_counts_with_the_time_that_was_waited() -> None:
    done = answered(0, 0.0, [(1.0, 1), (2.0, 10)])
    # Never a token in 30 s; and three tokens in the first second, then silence to the 21st.
    silent = RequestRecord(1, due=1.0, sent=1.0, end=31.0, outcome="unanswered")
    stalled = answered(2, 0.0, [(1.0, 1), (2.0, 2)], outcome="timeout", end=21.0)
    broken = answered(3, 0.0, [(1.0, 1), (2.0, 2)], outcome="disconnect")
    summary = summarise(Outcome([done, silent, stalled, broken], 31.0, 1.0, (0.0, 31.0)), Slo())
    assert summary["ttft_due_s"] is not None
    assert (summary["ttft_due_s"]["count"], summary["ttft_due_s"]["max"]) == (3, 30.0)
    assert (summary["latency_s"]["count"], summary["latency_s"]["max"]) == (3, 30.0)
    # 20 s for two tokens; a request without a token has no rate.
    assert (summary["tpot_s"]["count"], summary["tpot_s"]["max"]) == (2, 10.0)
    assert summary["tok_s_user"]["min"] == pytest.approx(0.1)
