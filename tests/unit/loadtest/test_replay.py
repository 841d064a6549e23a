"""The replay against a server whose every chunk is scripted, in virtual time: what is measured is what was done."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_loadtest.client import AskSettings
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.mock.script import Script, load_script
from dspark_loadtest.plan import Leaving, Plan
from dspark_loadtest.reconcile import Counts, reconcile
from dspark_loadtest.stats import Slo, summarise
from dspark_loadtest.traces.request import Trace, TraceRequest
from dspark_loadtest.traces.synthetic import Phase, generate
from sgl_dspark.simulator.arrivals import Lengths
from tests.support.virtual_time import replay

# What the loop's own rounding of timers may add, far below anything that is scripted.
EXACT = 1e-3


def even(count: int, gap_s: float, output: int = 10) -> Trace:
    """Make requests at equal distances."""
    return Trace(tuple(TraceRequest(1e3 * gap_s * i, 20, output) for i in range(count)))


def counted(server: Any) -> Counts:
    """Read the mock's counters as its ``/metrics`` would show them."""
    return Counts(
        {
            "generation_tokens_total": server.generation_tokens,
            "prompt_tokens_total": server.prompt_tokens,
            "num_requests_total": server.finished + server.aborted,
            "num_aborted_requests_total": server.aborted,
        },
        None,
    )


ZERO = Counts(dict.fromkeys(("generation_tokens_total", "prompt_tokens_total", "num_requests_total"), 0.0), None)


def test_what_is_measured_is_the_script() -> None:
    script = Script(ttft_s=0.2, tpot_s=0.03, tokens_per_chunk=(1, 3, 2), first_chunk_tokens=2, gamma=3)
    outcome, server = replay(script, even(8, 0.25, output=20), Plan())
    for i, record in enumerate(outcome.records):
        assert record.ok
        assert record.due == pytest.approx(0.25 * i, abs=1e-9)
        assert record.send_lag_s == pytest.approx(0, abs=EXACT)
        assert record.ttft_s == pytest.approx(0.2, abs=EXACT)
        assert record.tpot_s == pytest.approx(0.03, rel=0.01)
        assert list(record.chunk_tokens) == [2, *(1, 3, 2) * 3]
        assert record.completion_tokens == record.seen_tokens == 20
        # Nine rounds of 18 tokens, of which nine are drafts.
        assert (record.verify_rounds, record.correct_drafts, record.proposed_drafts) == (9, 9, 27)
    summary = summarise(outcome, Slo())
    assert summary["speculation"]["mean_accept_len"] == 2
    assert not any(summary["accounting"].values())
    found = reconcile(ZERO, counted(server), outcome.records)
    assert found["completion"] == {
        **{"answered": 160, "client_least": 160, "client_most": 160},
        **{"server": 160, "agrees": True},
    }
    assert found["prompt"]["agrees"]


def test_the_trace_s_clock_runs_faster() -> None:
    outcome, _ = replay(Script(), even(5, 1.0), Plan(speed=4))
    assert [record.due for record in outcome.records] == [0, 0.25, 0.5, 0.75, 1.0]


def test_a_stall_of_one_second_shows_in_as_many_samples_as_fell_due_in_it() -> None:
    """Coordinated omission: a client that waits for its answers would see the stall once."""
    script = Script(ttft_s=0.01, tpot_s=0.001, stall_at_s=1.0, stall_s=1.0)
    outcome, _ = replay(script, even(150, 0.02, output=2), Plan())
    late = [record.ttft_due_s for record in outcome.records if record.ttft_due_s and record.ttft_due_s > 0.05]
    # 50 fall due in the second; those of its last 0.04 s wait less than 0.05 s.
    assert 46 <= len(late) <= 49
    assert max(late) == pytest.approx(1.0, abs=0.03)
    assert sum(late) / len(late) == pytest.approx(0.53, abs=0.04)
    closed, _ = replay(script, even(150, 0.02, output=2), Plan(concurrency=1))
    assert sum((record.ttft_s or 0) > 0.05 for record in closed.records) == 1


def test_waiting_at_the_server_counts_from_when_the_request_was_due() -> None:
    script = Script(ttft_s=0.1, tpot_s=0.1, concurrency=1)
    outcome, _ = replay(script, even(4, 0.5, output=10), Plan())
    # Each answer takes a second and one starts every half: the k-th waits half a second longer than the one before.
    assert [r.ttft_due_s for r in outcome.records] == pytest.approx([0.1, 0.6, 1.1, 1.6], abs=0.01)
    assert [r.send_lag_s for r in outcome.records] == pytest.approx([0] * 4, abs=EXACT)


def test_a_closed_loop_keeps_its_clients_busy_and_knows_its_steady_time() -> None:
    script = Script(ttft_s=0.1, tpot_s=0.1)
    outcome, _ = replay(script, even(3, 9.0, output=10), Plan(concurrency=4, max_requests=12, cycle=True))
    assert len(outcome.records) == 12
    assert sorted(record.index for record in outcome.records) == list(range(12))
    summary = summarise(outcome, Slo())
    # Four clients, ten tokens in a second each.
    assert summary["output_tok_s"] == pytest.approx(40, rel=0.05)
    assert summary["concurrency"] == pytest.approx(4, rel=0.02)
    assert outcome.steady == pytest.approx((0.1, 3.0), abs=0.01)


def test_bounds_end_a_run() -> None:
    assert len(replay(Script(), even(50, 0.1), Plan(duration_s=1.05))[0].records) == 11
    assert len(replay(Script(), even(50, 0.1), Plan(max_requests=7))[0].records) == 7
    outcome, _ = replay(Script(ttft_s=0.1, tpot_s=10.0), even(2, 0.1), Plan(drain_s=1.0))
    assert [record.outcome for record in outcome.records] == ["unanswered"] * 2
    assert [record.seen_tokens for record in outcome.records] == [1, 1]


@pytest.mark.parametrize("clients", [None, 3])
def test_ctrl_c_ends_a_run_and_keeps_what_was_measured(clients: int | None) -> None:
    script = Script(ttft_s=0.1, tpot_s=0.1)
    outcome, server = replay(script, even(40, 0.5, output=12), Plan(concurrency=clients), stop_at=4.0)
    kinds = summarise(outcome, Slo())["requests"]["outcomes"]
    assert outcome.interrupted
    assert set(kinds) == {"ok", "interrupted"}
    assert kinds["ok"] >= 5
    assert sum(kinds.values()) == server.requests < 40
    assert all(0 < r.seen_tokens < 12 for r in outcome.records if not r.ok and r.first is not None)


@pytest.mark.parametrize("kind", ["429", "503"])
def test_a_busy_server_is_asked_again_when_it_says_so(kind: str) -> None:
    script = Script(ttft_s=0.1, fault=kind, fault_every=2, retry_after_s=3.0)
    outcome, server = replay(script, even(1, 1.0), Plan())
    (record,) = outcome.records
    assert (record.outcome, record.retries) == ("ok", [f"http_{kind}"])
    assert record.ttft_due_s == pytest.approx(3.1, abs=EXACT)
    assert server.requests == 2


def test_a_server_that_stays_busy_is_reported_after_the_last_attempt() -> None:
    outcome, server = replay(Script(fault="429", fault_every=1), even(1, 1.0), Plan(), AskSettings(retries=2))
    (record,) = outcome.records
    assert (record.outcome, record.retries, record.message) == ("http_429", ["http_429"] * 2, "scripted refusal")
    assert server.requests == 3
    summary = summarise(outcome, Slo())
    assert summary["requests"]["retries"] == {"http_429": 2}
    assert summary["requests"]["failed"] == 1


@pytest.mark.parametrize(("fault", "outcome_name"), [("error", "stream_500"), ("disconnect", "disconnect")])
def test_an_answer_that_breaks_off_keeps_what_was_seen(fault: str, outcome_name: str) -> None:
    script = Script(fault=fault, fault_every=3, fault_after_tokens=4)
    outcome, server = replay(script, even(6, 0.5), Plan())
    broken = [record for record in outcome.records if not record.ok]
    assert [record.outcome for record in broken] == [outcome_name] * 2
    assert all(record.seen_tokens == record.completion_tokens == 4 for record in broken)
    found = reconcile(ZERO, counted(server), outcome.records)
    assert found["completion"]["agrees"]
    assert found["completion"]["client_least"] == server.generation_tokens == 4 * 10 + 2 * 4


def test_a_slow_answer_times_out() -> None:
    outcome, _ = replay(Script(ttft_s=5.0), even(1, 1.0), Plan(), AskSettings(timeout_s=2.0))
    assert outcome.records[0].outcome == "timeout"
    assert "2 s" in outcome.records[0].message


def test_who_leaves_is_no_error_and_tokens_still_lie_between_both_counts() -> None:
    script = Script(ttft_s=0.2, tpot_s=0.05)
    trace = generate([Phase(10, 5)], Lengths(20, 40, 0.2, 0.2), seed=5)
    outcome, server = replay(script, trace, Plan(leaving=Leaving(0.6, tokens=20, seconds=1.0), seed=2))
    summary = summarise(outcome, Slo())
    kinds = summary["requests"]["outcomes"]
    assert set(kinds) == {"left", "ok"}
    assert kinds["left"] > 10
    assert summary["requests"]["failed"] == 0
    found = reconcile(ZERO, counted(server), outcome.records)["completion"]
    assert found["agrees"]
    assert found["client_least"] < found["client_most"]
    again, _ = replay(script, trace, Plan(leaving=Leaving(0.6, tokens=20, seconds=1.0), seed=2))
    assert [r.outcome for r in again.records] == [r.outcome for r in outcome.records]


def test_turns_wait_for_their_answer_and_go_on_from_it() -> None:
    turns = (
        TraceRequest(0, 30, 10, session_id="a"),
        TraceRequest(500, 60, 5, session_id="a", delay=200),
        TraceRequest(9000, 90, 5, session_id="a"),
    )
    settings = AskSettings(keep_text=True)
    outcome, server = replay(Script(ttft_s=0.1, tpot_s=0.1), Trace(turns), Plan(), settings)
    _, second, third = outcome.records
    # The first answer ends at 1.0; the second turn was due at 0.5, and follows 0.2 s after the answer.
    assert second.due == pytest.approx(1.2, abs=0.01)
    assert second.waited == pytest.approx(0.7, abs=0.01)
    assert third.due == pytest.approx(9.0, abs=1e-6)
    assert third.waited == 0
    messages = server.bodies[2]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[1]["content"].split() == [f"t{i}" for i in range(10)]
    assert messages[:3] == server.bodies[1]["messages"]


def test_a_session_ends_where_a_turn_fails() -> None:
    turns = tuple(TraceRequest(1000.0 * i, 30, 5, session_id="a") for i in range(3))
    settings = AskSettings(keep_text=True)
    outcome, _ = replay(Script(fault="error", fault_every=1), Trace(turns), Plan(), settings)
    # Its later turns were never sent; they are failures of the server all the same, and no one's goodput.
    assert [record.outcome for record in outcome.records] == ["stream_500", "skipped", "skipped"]
    assert [record.sent is None for record in outcome.records] == [False, True, True]
    summary = summarise(outcome, Slo())
    assert (summary["requests"]["sent"], summary["requests"]["failed"], summary["goodput"]["share"]) == (1, 3, 0)


def test_texts_and_messages_of_the_trace_are_sent_as_they_are() -> None:
    said = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    trace = Trace((TraceRequest(0, text_input="Hello", extra={"top_k": 3}), TraceRequest(10, messages=said)))
    _, server = replay(Script(max_tokens=7), trace, Plan(), AskSettings(max_tokens=6, extra={"seed": 1}))
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "Hello"}]
    assert (server.bodies[0]["top_k"], server.bodies[0]["seed"], server.bodies[0]["max_tokens"]) == (3, 1, 6)
    assert server.bodies[1]["messages"] == list(said)


def test_running_usage_may_be_missing() -> None:
    outcome, _ = replay(Script(ttft_s=0.1, tpot_s=0.1, continuous_usage=False), even(2, 1.0, output=11), Plan())
    for record in outcome.records:
        assert (record.completion_tokens, record.seen_tokens) == (11, 0)
        assert record.tpot_s == pytest.approx(0.1, rel=0.01)
    assert summarise(outcome, Slo())["accounting"]["without_running_usage"] == 2


def test_an_order_without_times_needs_clients() -> None:
    trace = Trace((TraceRequest(None, 20, 5),))
    with pytest.raises(LoadtestError, match="the trace has no timestamps"):
        replay(Script(), trace, Plan())
    assert replay(Script(), trace, Plan(concurrency=1))[0].records[0].ok


def test_an_unknown_category_ends_the_run() -> None:
    with pytest.raises(LoadtestError, match="category 'poems'"):
        replay(Script(), Trace((TraceRequest(0, 20, 5, category="poems"),)), Plan())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tpot": 1}, "tpot: is no field of a script"),
        ({"ttft_s": -1}, "ttft_s: -1 is not a number of at least 0"),
        ({"tokens_per_chunk": []}, "tokens_per_chunk: give one or more"),
        ({"tokens_per_chunk": [5], "gamma": 3}, "gamma: a round of 3 drafts has no 5 tokens"),
        ({"fault": "flood"}, "fault: 'flood' is none of"),
        ({"ttft_s": "soon"}, "wrong kind"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused_by_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadtestError, match=message):
        load_script(None, fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"speed": 0.0}, "speed"),
        ({"concurrency": 0}, "concurrency"),
        ({"cycle": True}, "cycle"),
        ({"max_requests": 0}, "max_requests"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_by_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadtestError, match=message):
        Plan(**fields)
