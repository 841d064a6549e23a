"""Load tests against the real server: both sides count the same tokens, rounds and drafts, whatever users do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_loadtest.client import AskSettings
from dspark_loadtest.endpoint import Endpoint
from dspark_loadtest.plan import Leaving, Plan
from dspark_loadtest.session import Measured, Workload, look_at, measure
from dspark_loadtest.traces.request import Trace, TraceRequest
from dspark_loadtest.traces.synthetic import Phase, Prefixes, generate
from sgl_dspark.simulator.arrivals import Lengths
from tests.support import pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server
LENGTHS = Lengths(60, 30, 0.4, 0.4, max_prompt_tok=200, max_output_tok=80)


def trace(seed: int, *, requests: int = 60) -> Trace:
    """Make prompts of which all share a beginning."""
    made = generate([Phase(requests / 20, 20)], LENGTHS, seed=seed, block_size=32, prefixes=Prefixes(blocks=1))
    assert len(made) > requests / 2
    return made


def run(server: ServerProcess, workload: Workload) -> Measured:
    return measure(look_at(server.url, []), workload, show=False)


def test_both_sides_count_the_same(dspark: ServerProcess) -> None:
    measured = run(dspark, Workload(trace(1), plan=Plan(concurrency=8)))
    summary, records = measured.summary, measured.outcome.records
    assert summary["requests"]["ok"] == len(measured.trace)
    found = summary["reconciliation"]
    assert found["completion"]["server"] == found["completion"]["answered"] == summary["completion_tokens"]
    assert found["prompt"]["server"] == found["prompt"]["answered"]
    assert found["requests"]["server"] == len(records)
    # The worker's own counters: every round and every accepted draft has reached its request; the token of prefill
    # belongs to no round.
    assert found["dspark"]["agrees"] is True
    assert found["dspark"]["tokens"] + len(records) == summary["completion_tokens"]
    assert all(record.completion_tokens == record.asked_output for record in records)
    assert summary["speculation"]["mean_verify_len"] > 1
    lost = {name: n for name, n in summary["accounting"].items() if name != "tokens_without_text"}
    assert not any(lost.values())


def test_prompts_are_as_long_as_the_trace_says(dspark: ServerProcess) -> None:
    served = look_at(dspark.url, [])
    assert (served.context, served.counted) == (pair.CONTEXT_LENGTH, True)
    measured = measure(served, Workload(trace(2, requests=30), plan=Plan(concurrency=4)), show=False)
    assert measured.summary["prompts"]["tokens_over_wanted"] == pytest.approx(1, abs=0.05)


def test_users_who_leave_are_accounted_for_and_the_others_get_theirs(dspark: ServerProcess) -> None:
    workload = Workload(
        trace(3, requests=120),
        settings=AskSettings(keep_text=True),
        plan=Plan(concurrency=16, leaving=Leaving(0.5, tokens=20, seconds=0.5), seed=1),
    )
    measured = run(dspark, workload)
    kinds = measured.summary["requests"]["outcomes"]
    assert set(kinds) == {"left", "ok"}
    assert kinds["left"] > 20
    found = measured.summary["reconciliation"]
    assert found["completion"]["agrees"], found
    assert found["requests"]["server"] == len(measured.outcome.records)
    dspark.wait_until_idle()
    # Who stayed got the answer that he gets when nobody leaves.
    alone = run(dspark, replace(workload, plan=Plan(concurrency=2, max_requests=40)))
    texts = {record.index: record.text for record in alone.outcome.records}
    stayed = [record for record in measured.outcome.records if record.ok and record.index in texts]
    assert len(stayed) > 5
    assert all(record.text == texts[record.index] for record in stayed)


def test_a_conversation_goes_on_from_what_was_answered(dspark: ServerProcess) -> None:
    turns = tuple(TraceRequest(0.0, 40 + 50 * i, 12, session_id="a") for i in range(3))
    measured = run(dspark, Workload(Trace(turns), plan=Plan()))
    lengths = [record.prompt_tokens for record in measured.outcome.records]
    assert measured.summary["requests"]["ok"] == 3
    assert lengths == sorted(lengths)
    assert lengths[2] == pytest.approx(140, abs=25)


def test_what_a_server_cannot_tell_is_not_guessed(dspark: ServerProcess) -> None:
    endpoint = Endpoint(dspark.url)
    assert endpoint.model()[1] == pair.CONTEXT_LENGTH
    assert endpoint.metrics() is not None
    assert endpoint.count_tokens(["a b c", ""]) is not None
    assert Endpoint(dspark.url + "/nowhere").metrics() is None
