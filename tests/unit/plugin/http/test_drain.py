"""The end of a server: what runs may end, what has not ended is told, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from dspark_sglang.http import drain as drain_module
from tests.support import http_app
from tests.support.asgi import Reply, call
from tests.support.http_app import Manager, World

JSON = [(b"content-type", b"application/json")]
Act = Callable[[str], Awaitable[Reply]]


@pytest.fixture(autouse=True)
def _restore_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in drain_module.SIGNALS]
    monkeypatch.setenv("SGL_FORCE_SHUTDOWN", "")
    yield
    for number, handler in before:
        signal.signal(number, handler)


def serve(test: Callable[[World, Manager, Act], Awaitable[Any]], timeout_s: float) -> World:
    """Run a test inside the loop of a draining application."""

    async def run() -> World:
        world, manager = http_app.build(timeout_s), Manager()
        world.drain.attach(manager)

        async def ask(what: str) -> Reply:
            body = [json.dumps({"act": what}).encode()]
            return await call(world.app, "/v1/chat/completions", "POST", JSON, body)

        await asyncio.wait_for(test(world, manager, ask), 60)
        return world

    return asyncio.run(run())


async def under_way(world: World, count: int) -> None:
    while len(world.drain._requests) < count:
        await asyncio.sleep(0)


def test_a_signal_lets_requests_end() -> None:
    async def test(world: World, manager: Manager, ask: Act) -> None:
        asked = [asyncio.create_task(ask(what)) for what in ("hang", "stream hangs")]
        await under_way(world, 2)
        signal.raise_signal(signal.SIGTERM)
        while not world.drain.draining:
            await asyncio.sleep(0)
        assert manager.gracefully_exit
        assert not world.drain._over.is_set()
        world.held.set()
        whole, stream = await asyncio.gather(*asked)
        assert (whole.status, whole.body, whole.headers["connection"]) == (200, b'"late"', "close")
        assert stream.body.endswith(b"data: [DONE]\n\n")
        await world.drain.over()
        assert not manager.aborted

    assert serve(test, 600).ended == []


def test_at_the_deadline_clients_are_told() -> None:
    async def test(world: World, manager: Manager, ask: Act) -> None:
        asked = [asyncio.create_task(ask(what)) for what in ("hang", "stream hangs")]
        await under_way(world, 2)
        world.drain.begin(signal.SIGTERM)
        whole, stream = await asyncio.gather(*asked)
        assert (whole.status, whole.error["code"], whole.headers["connection"]) == (503, "server_draining", "close")
        assert "retry-after" in whole.headers
        first, error, done, _ = stream.body.decode().split("\n\n")
        assert first + "\n\n" == http_app.CHUNK.decode()
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "server_draining"
        assert done == "data: [DONE]"
        await world.drain.over()
        assert manager.aborted

    # The deadline of the requests is half of it.
    assert serve(test, 0.4).cancelled == ["request", "request"]


def test_an_idle_server_is_over_at_once() -> None:
    async def test(world: World, manager: Manager, ask: Act) -> None:
        world.drain.begin(signal.SIGINT)
        await world.drain.over()

    assert serve(test, 600).ended == []


def test_a_request_that_the_scheduler_never_ends_does_not_hold_it_up() -> None:
    async def test(world: World, manager: Manager, ask: Act) -> None:
        manager.rid_to_state["stuck"] = object()
        world.drain.begin(signal.SIGTERM)
        await world.drain.over()
        assert os.environ["SGL_FORCE_SHUTDOWN"] == "1"

    serve(test, 0.2)


def test_a_second_signal_ends_the_process() -> None:
    async def test(world: World, manager: Manager, ask: Act) -> None:
        manager.rid_to_state["running"] = object()
        signal.raise_signal(signal.SIGTERM)
        while not world.drain.draining:
            await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        assert world.ended == [128 + signal.SIGINT]
        manager.rid_to_state.clear()
        await world.drain.over()

    serve(test, 600)


def test_what_follows_the_last_byte_holds_nothing_up() -> None:
    async def test(world: World, manager: Manager, ask: Act) -> None:
        reply = await ask("stream")
        assert reply.complete
        assert not world.drain._requests

    serve(test, 600)


def test_sglangs_own_handler_of_sigterm_is_ours() -> None:
    async def test(world: World, manager: Any, ask: Act) -> None:
        manager.signal_handler_class(manager).sigterm_handler(signal.SIGTERM, None)
        await world.drain.over()
        assert world.drain.draining

    serve(test, 600)
