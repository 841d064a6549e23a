"""Who is turned away before anything is read, and the bytes that a body may have."""

from __future__ import annotations

import asyncio

import pytest

from dspark_sglang.http import errors
from tests.support import http_app
from tests.support.asgi import Reply, call

CHAT, LIMIT = "/v1/chat/completions", http_app.LIMIT_BYTES


def ask(
    path: str = CHAT, method: str = "POST", headers: list[tuple[bytes, bytes]] | None = None, closed: bool = False
) -> Reply:
    world = http_app.build()
    world.closed = errors.starting() if closed else None
    return asyncio.run(call(world.app, path, method, headers or [(b"content-type", b"application/json")], [b"{}"]))


def test_a_closed_server_takes_no_work() -> None:
    reply = ask(closed=True)
    assert (reply.status, reply.error["code"]) == (503, "server_starting")
    assert 1 <= int(reply.headers["retry-after"]) <= 5


def test_reading_administration_and_its_own_warm_up_go_on() -> None:
    assert ask("/health", "GET", closed=True).body == b""
    assert ask("/admin", closed=True).status == 200
    key = (b"x-dspark-warmup", http_app.WARMUP_KEY.encode())
    assert ask("/free", headers=[key], closed=True).status == 200
    assert ask("/free", headers=[(b"x-dspark-warmup", b"\xe9")], closed=True).status == 503


@pytest.mark.parametrize("path", [CHAT, "/free"])
@pytest.mark.parametrize(("size", "status"), [(LIMIT, 200), (LIMIT + 1, 413)])
@pytest.mark.parametrize("announced", [True, False])
def test_the_limit_is_exact(path: str, size: int, status: int, announced: bool) -> None:
    body = b"{" + b" " * (size - 2) + b"}"
    headers = [(b"content-type", b"application/json")]
    if announced:
        headers.append((b"content-length", str(size).encode()))
    chunks = [body[start : start + 300] for start in range(0, size, 300)]
    reply = asyncio.run(call(http_app.build().app, path, "POST", headers, chunks))
    assert reply.status == status
    if status == 413:
        assert reply.error["code"] == "request_too_large"
        assert reply.headers["connection"] == "close"


def test_an_announced_body_is_refused_before_a_byte_is_asked_for() -> None:
    """Asking for it would send "100 Continue" to a client that waits for leave to send."""
    asked: list[bytes] = []

    class Chunks(list[bytes]):
        def pop(self, index: int = -1) -> bytes:  # type: ignore[override]
            asked.append(b"")
            return super().pop(index)

    headers = [(b"content-length", str(LIMIT + 1).encode()), (b"expect", b"100-continue")]
    reply = asyncio.run(call(http_app.build().app, CHAT, "POST", headers, Chunks([b""])))
    assert reply.status == 413
    assert not asked
