"""The streaming client against a scripted server: times, tokens, counters, and every way an answer can fail."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import aiohttp
import numpy as np
import pytest

from dspark_sglang.bench import BenchError
from dspark_sglang.bench.client import WARM_UP_TOKENS, RequestSettings, measure_level, request
from dspark_sglang.bench.metrics import RequestResult
from sgl_dspark.data.prompt_set import Prompt
from tests.support.fake_chat_server import DETAILS, FakeChatServer

PROMPTS = [Prompt("chat", ({"role": "user", "content": f"question {i}"},)) for i in range(6)]
SETTINGS = RequestSettings(max_tokens=6)


def _ask(server: FakeChatServer) -> RequestResult:
    """Answer one request by a clock that moves on by one second each time that it is read."""
    seconds = itertools.count()

    async def ask() -> RequestResult:
        async with aiohttp.ClientSession() as session:
            body = SETTINGS.body("m", PROMPTS[0])
            return await request(session, server.url, body, 7, clock=lambda: float(next(seconds)))

    return asyncio.run(ask())


def _level(server: FakeChatServer, concurrency: int = 1, settings: RequestSettings = SETTINGS, **options: Any):
    return asyncio.run(measure_level(server.url, PROMPTS, concurrency, settings, flush=True, **options))


def test_times_tokens_and_counters_of_one_request() -> None:
    # Sent at 0, role at 1, three pieces of text at 2, 3, 4, finish reason at 5.
    with FakeChatServer(details=DETAILS) as server:
        assert _ask(server) == RequestResult(
            prompt=7,
            start=0.0,
            first=2.0,
            end=5.0,
            prompt_tokens=5,
            completion_tokens=6,
            finish_reason="length",
            text="one two three",
            verify_rounds=2,
            correct_drafts=3,
            histogram=(0, 1, 1),
        )


def test_a_server_without_speculation_has_no_counters() -> None:
    with FakeChatServer() as server:
        result = _ask(server)
    assert (result.verify_rounds, result.correct_drafts, result.histogram) == (None, None, ())


def test_an_answer_without_text_starts_when_it_ends() -> None:
    with FakeChatServer(pieces=(), completion_tokens=1, finish_reason="stop") as server:
        result = _ask(server)
    assert result.first == result.end == 2.0


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"status": 400}, "answered 400: top_k is refused"),
        ({"error_in_stream": "out of memory"}, "broke off an answer: out of memory"),
        ({"finish_reason": None}, "without a finish reason"),
        ({"finish_reason": "abort"}, "ended an answer with 'abort'"),
    ],
)
def test_a_failed_request_names_the_cause(script: dict[str, Any], message: str) -> None:
    with FakeChatServer(**script) as server, pytest.raises(BenchError, match=message):
        _ask(server)


def test_a_request_that_takes_too_long() -> None:
    with (
        FakeChatServer(on_request=lambda *_: asyncio.Event().wait()) as server,
        pytest.raises(BenchError, match="raise --timeout"),
    ):
        _level(server, settings=RequestSettings(timeout_s=0.05))


def test_a_closed_connection_is_one_sentence() -> None:
    with FakeChatServer() as server:
        url = server.url
    with pytest.raises(BenchError, match=f"the connection to {url} failed"):
        asyncio.run(measure_level(url, PROMPTS, 1, SETTINGS, flush=False))


def test_a_level_warms_up_flushes_and_sends_the_prompts_in_order() -> None:
    told: list[int] = []
    with FakeChatServer() as server:
        results = _level(server, settings=RequestSettings(6, 0.5, True, extra={"top_p": 0.9}), progress=told.append)
    assert server.calls == ["chat", "flush", *["chat"] * 6]
    assert server.bodies[0]["max_tokens"] == WARM_UP_TOKENS
    assert [b["messages"][0]["content"] for b in server.bodies[1:]] == [f"question {i}" for i in range(6)]
    assert [r.prompt for r in results] == list(range(6))
    assert told == [1, 2, 3, 4, 5, 6]
    body = server.bodies[1]
    assert (body["model"], body["max_tokens"], body["temperature"], body["top_p"]) == ("fake-model", 6, 0.5, 0.9)
    assert body["ignore_eos"] is body["stream"] is body["return_spec_tokens_details"] is True


def test_limits_are_spread_evenly_and_are_the_same_each_time() -> None:
    settings = RequestSettings(96, length_spread=0.5)
    with FakeChatServer() as server:
        _level(server, settings=settings)
        _level(server, settings=settings)
    limits = [
        [b["max_tokens"] for b in server.bodies if b["messages"][0]["content"] == f"question {i}"] for i in range(6)
    ]
    assert all(first == second for first, second in limits)
    assert len({first for first, _ in limits}) == 6
    assert {RequestSettings(96).limit(i) for i in range(50)} == {96}
    assert RequestSettings(1, length_spread=0.9).limit(1) == 1
    # Whatever part of the prompts is sent, its limits are spread alike: a fifth of them in each fifth of the range.
    for count in (20, 50, 333):
        fifths = np.bincount([min(int((settings.limit(i) - 48) / 48 * 5), 4) for i in range(count)], minlength=5)
        assert np.abs(fifths - count / 5).max() <= 3 + 0.02 * count, fifths


def test_a_level_keeps_exactly_its_concurrency_in_flight() -> None:
    # Nobody is answered before three are waiting: with fewer it would hang, with more the peak would show it.
    barrier = asyncio.Barrier(3)
    with FakeChatServer(on_request=lambda *_: barrier.wait()) as server:
        results = _level(server, concurrency=3)
    assert server.peak == 3
    assert [r.prompt for r in results] == list(range(6))


def test_a_cache_that_is_not_emptied_stops_the_level() -> None:
    with FakeChatServer(flush_status=400) as server, pytest.raises(BenchError, match="prefix cache: said so"):
        _level(server)


def test_the_first_failure_ends_the_level() -> None:
    # The failing request finds a level of two; the other is never answered and must be cancelled.
    def third_fails(number: int, _: dict[str, Any]) -> Any:
        server.status = 400 if number == 2 else 200
        return asyncio.Event().wait() if number == 3 else None

    with FakeChatServer() as server:
        server.on_request = third_fails
        with pytest.raises(BenchError, match="400"):
            _level(server, concurrency=2)
