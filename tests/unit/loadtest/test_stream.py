"""Streams that are not what they should be: an answer may break, its record stays one answer's, the run goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_loadtest.client import AskSettings, ChatClient
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.mock import server as mock
from dspark_loadtest.mock.script import Script
from dspark_loadtest.plan import Plan
from dspark_loadtest.reconcile import Counts, read_settled, reconcile
from dspark_loadtest.record import INTERRUPTED, MALFORMED, OK, RequestRecord
from dspark_loadtest.stream import Stream
from dspark_loadtest.traces.request import Trace, TraceRequest
from tests.support.virtual_time import replay

FIVE = Trace(tuple(TraceRequest(200.0 * i, 10, 8, category="chat") for i in range(5)))
CHUNKS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "usage", "delta", "content", "finish_reason", "error", "code", "message", "sglext"),
                    *("completion_tokens", "prompt_tokens", "spec_tokens_details", "spec_verify_ct"),
                    "spec_cap_lens_histogram",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("clients", [None, 2])
@pytest.mark.parametrize("odd", [["x"], {"choices": ["x"]}, {"choices": [{"delta": 3}]}, {"usage": 7}, "x"])
def test_a_chunk_of_the_wrong_shape_ends_its_answer_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, clients: int | None, odd: Any
) -> None:
    original = mock._Answer.text
    answers: list[object] = []

    def text(answer: Any, count: int) -> bytes:
        if answer not in answers:
            answers.append(answer)
        said = original(answer, count)
        # The second answer of all, in its third chunk.
        return (
            b"data: " + json.dumps(odd).encode() + b"\n\n" + said
            if answers[1:2] == [answer] and answer.sent == 3
            else said
        )

    monkeypatch.setattr(mock._Answer, "text", text)
    outcome, _ = replay(Script(ttft_s=0.05, tpot_s=0.01), FIVE, Plan(concurrency=clients))
    kinds = sorted(record.outcome for record in outcome.records)
    assert kinds == [MALFORMED] + [OK] * 4
    (broken,) = (record for record in outcome.records if not record.ok)
    # What came behind it in the same packet is not read any more.
    assert broken.seen_tokens == 2
    assert "is no " in broken.message


@given(st.lists(CHUNKS, max_size=4))
def test_whatever_a_server_says_becomes_an_outcome(chunks: list[Any]) -> None:
    record = RequestRecord(0)
    stream = Stream(record, keep_text=True)
    for chunk in chunks:
        stream.take(b"data: " + json.dumps(chunk).encode() + b"\n\n", 1.0)
    stream.take(b"data: [DONE]\n\n", 2.0)
    assert stream.over
    assert record.outcome in (OK, MALFORMED) or record.outcome.startswith("stream_")
    assert record.outcome != INTERRUPTED
    json.dumps(record.to_json())


def test_an_unknown_category_of_a_later_turn_is_found_before_anything_is_sent() -> None:
    turns = (TraceRequest(0, 10, 5, session_id="a"), TraceRequest(300, 40, 5, session_id="a", category="poems"))
    with pytest.raises(LoadtestError, match="category 'poems'"):
        replay(Script(), Trace(turns), Plan(), AskSettings(keep_text=True))


def test_an_error_of_ours_in_a_later_turn_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversation's task fails long before the last request is due; it used to be forgotten."""
    original = ChatClient.body

    def body(client: ChatClient, messages: list[dict[str, Any]], *rest: Any) -> bytes:
        if len(messages) > 1:
            raise RuntimeError("a bug")
        return original(client, messages, *rest)

    monkeypatch.setattr(ChatClient, "body", body)
    turns = (TraceRequest(0, 10, 5, session_id="a"), TraceRequest(300, 40, 5, session_id="a"))
    with pytest.raises(RuntimeError, match="a bug"):
        replay(Script(), Trace((*turns, TraceRequest(60_000, 10, 5))), Plan(), AskSettings(keep_text=True))


def _busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scripted failure be the 503 of a server that is draining."""

    async def fail(_: Any, __: Any, reply: Any) -> Any:
        error = {"error": {"message": "draining", "code": 503}}
        await reply.write(f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode())
        return reply

    monkeypatch.setattr(mock.MockServer, "_fail", fail)


def test_an_answer_that_has_begun_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _busy(monkeypatch)
    script = Script(fault="error", fault_every=2, fault_after_tokens=3)
    outcome, server = replay(script, Trace((TraceRequest(0, 10, 8),)), Plan(), AskSettings(keep_text=True))
    (record,) = outcome.records
    assert (record.outcome, record.retries, server.requests) == ("stream_503", [], 1)
    assert (record.completion_tokens, record.seen_tokens, record.text) == (3, 3, "t0 t1 t2 ")
    assert not record.went_back
    # The server has counted it: so it is waited for, and its tokens are expected.
    before = {"generation_tokens_total": 0.0, "prompt_tokens_total": 0.0, "num_requests_total": 0.0}
    after = {"generation_tokens_total": 3.0, "prompt_tokens_total": 6.0, "num_requests_total": 1.0}
    asked: list[float] = []
    answers = iter([before, after])

    class Late:
        def metrics(self) -> dict[str, float]:
            return next(answers)

        def totals(self) -> None:
            return None

    late: Any = Late()
    settled = read_settled(late, Counts(before, None), outcome.records, wait=asked.append)
    assert (settled.metrics, len(asked)) == (after, 1)
    assert reconcile(Counts(before, None), settled, outcome.records)["completion"]["agrees"]


def test_an_answer_that_has_not_begun_is_asked_again_and_is_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    _busy(monkeypatch)
    script = Script(ttft_s=0.1, fault="error", fault_every=2, fault_after_tokens=0)
    outcome, server = replay(script, Trace((TraceRequest(0, 10, 8),)), Plan(), AskSettings(keep_text=True))
    (record,) = outcome.records
    assert (record.outcome, record.retries, server.requests) == (OK, ["stream_503"], 2)
    assert record.text.split() == [f"t{i}" for i in range(8)]
    assert (sum(record.chunk_tokens), record.went_back) == (8, False)
