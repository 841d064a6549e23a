"""What is asked of a server besides chat: keys, and a prefix cache that is really emptied."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from dspark_loadtest.endpoint import Endpoint
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.mock.script import Script
from dspark_loadtest.mock.server import MockServer
from dspark_loadtest.session import Workload, look_at, measure
from dspark_loadtest.traces.request import Trace, TraceRequest
from sgl_dspark.server_keys import authorization

FAST = Script(ttft_s=0.005, tpot_s=0.001)
ONE = Trace((TraceRequest(0, 10, 4, category="chat"),))


class Guarded(MockServer):
    """Empties its cache as SGLang does: for who has the key, once it is idle."""

    def __init__(self, key: str | None = None, busy: int = 0, status: int = 400) -> None:
        super().__init__(FAST)
        self.key, self.busy, self.status = key, busy, status
        self.flushes = 0

    async def _flush(self, request: web.Request) -> web.Response:
        self.flushes += 1
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401, text="unauthorized")
        if self.flushes <= self.busy:
            return web.Response(status=self.status, text="pending requests")
        return web.Response()


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"DSPARK_ADMIN_KEY": "admin"}, "admin"),
        ({"DSPARK_API_KEY": "api"}, "api"),
        ({"DSPARK_API_KEY": "api", "DSPARK_ADMIN_KEY": "admin"}, "admin"),
    ],
)
def test_the_cache_is_emptied_with_the_key_that_sglang_wants(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], key: str
) -> None:
    for name in ("DSPARK_API_KEY", "DSPARK_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Guarded(key) as server:
        measured = measure(look_at(server.url, []), Workload(ONE, warm_up=0), show=False)
    assert server.flushes == 1
    assert measured.summary["prefix_cache"] == "emptied"
    assert not measured.summary["problems"]


def test_a_refused_flush_is_a_problem_unless_none_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSPARK_ADMIN_KEY", raising=False)
    with Guarded("admin") as server:
        served = look_at(server.url, [])
        refused = measure(served, Workload(ONE, warm_up=0), show=False).summary
        wanted = measure(served, Workload(ONE, warm_up=0, flush=False), show=False).summary
    assert any("The prefix cache was not emptied" in problem for problem in refused["problems"])
    assert any("DSPARK_ADMIN_KEY" in problem for problem in refused["problems"])
    assert (wanted["prefix_cache"], wanted["problems"], server.flushes) == ("left as it was", [], 1)


@pytest.mark.parametrize("status", [400, 206])
def test_a_busy_server_is_asked_again_until_it_is_idle(status: int) -> None:
    """The gateway says 206 when a replica refused, and also when all did."""
    waits: list[float] = []
    with Guarded(busy=3, status=status) as server:
        Endpoint(server.url).flush_cache(wait=waits.append)
    assert (server.flushes, len(waits)) == (4, 3)


def test_a_server_that_is_never_idle_is_given_up() -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    with Guarded(busy=10**6) as server, pytest.raises(LoadtestError, match="400: pending requests"):
        Endpoint(server.url).flush_cache(wait=wait, clock=lambda: now[0])
    assert now[0] == pytest.approx(30.0)


def test_a_server_that_has_no_such_address_is_asked_once() -> None:
    class Other(MockServer):
        async def _flush(self, request: Any) -> web.Response:
            raise web.HTTPNotFound

    with Other(FAST) as server, pytest.raises(LoadtestError, match="404"):
        Endpoint(server.url).flush_cache(wait=lambda _: pytest.fail("asked again"))


@pytest.mark.parametrize(
    ("path", "both", "one"),
    [
        ("/dspark/state", "api", "admin"),
        ("/v1/chat/completions", "api", "admin"),
        ("/dspark/policy", "admin", "admin"),
        ("/dspark/records?after=3", "admin", "admin"),
        ("/flush_cache?timeout=5", "admin", "admin"),
    ],
)
def test_each_key_goes_where_it_opens(monkeypatch: pytest.MonkeyPatch, path: str, both: str, one: str) -> None:
    """SGLang with both takes the admin key only where it guards with it: the worker's state is not there."""
    monkeypatch.setenv("DSPARK_ADMIN_KEY", "admin")
    monkeypatch.delenv("DSPARK_API_KEY", raising=False)
    assert authorization(path) == {"Authorization": f"Bearer {one}"}
    monkeypatch.setenv("DSPARK_API_KEY", "api")
    assert authorization(path) == {"Authorization": f"Bearer {both}"}
    monkeypatch.delenv("DSPARK_ADMIN_KEY")
    assert authorization(path) == {"Authorization": "Bearer api"}
    monkeypatch.delenv("DSPARK_API_KEY")
    assert authorization(path) == {}
