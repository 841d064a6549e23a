"""Throughput of the time that counts: the load of a server that answers everything is what was asked, however slow."""

from __future__ import annotations

import pytest

from dspark_loadtest.mock.script import Script
from dspark_loadtest.plan import Plan
from dspark_loadtest.scenario import Capacity, Expect, Scenario, ScenarioPhase, capacity_rps
from dspark_loadtest.stats import Slo, summarise
from dspark_loadtest.steady import open_loop
from dspark_loadtest.traces.request import Trace, TraceRequest
from sgl_dspark.simulator.arrivals import Lengths
from tests.support.records import answered
from tests.support.virtual_time import replay


def even(count: int, gap_s: float, output: int) -> Trace:
    """Make requests at equal distances."""
    return Trace(tuple(TraceRequest(1e3 * gap_s * i, 20, output) for i in range(count)))


@pytest.mark.parametrize("tpot_s", [0.06, 0.02, 0.005])
def test_an_open_loop_that_is_answered_carries_what_was_asked(tpot_s: float) -> None:
    """Counted from the first request on, a slow server seemed to carry a sixth less than a fast one."""
    outcome, _ = replay(Script(ttft_s=0.05, tpot_s=tpot_s), even(100, 0.1, 60), Plan())
    summary = summarise(outcome, Slo())
    assert summary["requests"]["ok"] == 100
    assert summary["output_tok_s"] == pytest.approx(600, rel=0.01)
    # Little's law, over the same time.
    assert summary["concurrency"] == pytest.approx(10 * (0.05 + 59 * tpot_s), rel=0.02)


def test_an_open_loop_above_capacity_carries_the_capacity() -> None:
    # Four answers of a second and ten tokens each at a time: 40 tokens a second, asked for twice that.
    outcome, _ = replay(Script(ttft_s=0.1, tpot_s=0.1, concurrency=4), even(160, 0.125, 10), Plan())
    assert summarise(outcome, Slo())["output_tok_s"] == pytest.approx(40, rel=0.02)


def test_the_server_has_filled_after_the_time_that_nine_in_ten_answers_take() -> None:
    records = [answered(i, float(i), [(i + 1.0, 1), (i + 3.0, 9)]) for i in range(10)]
    records[4].end = 4.0 + 20.0
    assert open_loop(records, 30.0) == (3.0, 9.0)
    # What was given up counts with its wait; from the middle on at the latest.
    for record in records[:3]:
        record.outcome, record.end = "unanswered", record.due + 30.0
    assert open_loop(records, 40.0) == (4.5, 9.0)
    assert open_loop(records[:1], 40.0) == (0.0, 40.0)


def test_capacity_is_that_of_a_full_server() -> None:
    """Sixteen clients, a token every 0.1 s each: 160 tokens a second, and with the tail counted in far less."""
    lengths = Lengths(32, 48, 0.0, 0.6, max_output_tok=200)
    scenario = Scenario("s", "S.", (ScenarioPhase(10, of_capacity=2.0),), lengths, Expect(), Capacity(16, 6))
    work = scenario.capacity_workload()
    outcome, _ = replay(Script(ttft_s=0.1, tpot_s=0.1), work.trace, work.plan)
    summary = summarise(outcome, Slo())
    mean = summary["completion_tokens"] / summary["requests"]["ok"]
    assert capacity_rps(summary) == pytest.approx(160 / mean, rel=0.03)
    assert summary["requests"]["ok"] / summary["wall_s"] < 0.9 * capacity_rps(summary)
