"""What a client is sent, for everything that the application may answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support import http_app
from tests.support.asgi import Reply, call

JSON = [(b"content-type", b"application/json")]
CHAT = "/v1/chat/completions"


def ask(path: str = CHAT, body: Any = None, method: str = "POST", raw: bytes | None = None) -> Reply:
    content = json.dumps(body or {}).encode() if raw is None else raw
    return asyncio.run(call(http_app.build().app, path, method, JSON, [content]))


def act(what: str, path: str = CHAT) -> Reply:
    return ask(path, {"act": what})


def test_an_answer_passes_as_it_is() -> None:
    reply = ask()
    assert (reply.status, reply.body) == (200, b'{"ok":true}')


@pytest.mark.parametrize(
    ("reply", "status", "code", "param"),
    [
        (lambda: ask("/v1/none"), 404, "unknown_url", None),
        (lambda: ask("/none"), 404, "unknown_url", None),
        (lambda: ask(method="GET"), 405, "method_not_supported", None),
        (lambda: ask(raw=b'{"act'), 400, "invalid_json", None),
        (lambda: ask(body={"temperature": -1}), 400, "invalid_value", "temperature"),
        (lambda: ask(body={"messages": [{"role": 3}]}), 400, "invalid_value", "messages.0.role"),
        (lambda: act("queue full"), 429, "queue_full", None),
        (lambda: act("raise queue full"), 429, "queue_full", None),
        (lambda: act("stream refused"), 429, "queue_full", None),
        (lambda: act("stream refused", "/generate"), 429, "queue_full", None),
        (lambda: act("stream aborted", "/generate"), 429, "queue_full", None),
        (lambda: act("crash"), 500, "internal_error", None),
        (lambda: act("whole crash"), 500, "internal_error", None),
    ],
)
def test_every_error_has_the_four_fields(reply: Any, status: int, code: str, param: str | None) -> None:
    found = reply()
    assert found.complete
    assert found.status == status
    assert list(found.error) == ["message", "type", "param", "code"]
    assert (found.error["code"], found.error["param"]) == (code, param)
    assert found.headers["content-type"] == "application/json"
    assert int(found.headers["content-length"]) == len(found.body)
    assert b"secret" not in found.body
    assert ("retry-after" in found.headers) == (status == 429)
    assert ("allow" in found.headers) == (status == 405)


def test_an_internal_error_names_where_to_look() -> None:
    reply = act("crash")
    assert reply.headers["x-request-id"] in reply.error["message"]


def test_other_apis_keep_their_own_errors() -> None:
    assert json.loads(ask("/v1/messages", {"temperature": -1}).body)["object"] == "error"
    crashed = json.loads(act("crash", "/v1/messages").body)
    assert crashed["type"] == "error"
    assert crashed["error"]["type"] == "api_error"


def test_probes_stay_without_a_body() -> None:
    reply = ask("/health", method="GET")
    assert (reply.status, reply.body) == (503, b"")


def events(reply: Reply) -> list[Any]:
    assert (reply.status, reply.complete) == (200, True)
    blocks = reply.body.decode().split("\n\n")[:-1]
    return [block if block == "data: [DONE]" else json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize(("what", "code"), [("stream fails", "queue_full"), ("stream crashes", "internal_error")])
def test_a_stream_that_fails_says_so_and_ends(what: str, code: str) -> None:
    first, error, done = events(act(what))
    assert (first, done) == ({"choices": []}, "data: [DONE]")
    assert list(error["error"]) == ["message", "type", "param", "code"]
    assert error["error"]["code"] == code
    assert "secret" not in error["error"]["message"]


def test_usage_is_null_on_every_chunk_but_the_last() -> None:
    first, last, _ = events(act("stream usage"))
    assert first == {"choices": [], "usage": None}
    assert last["usage"] == {"total_tokens": 3}
    assert events(act("stream"))[0] == {"choices": []}


def test_no_event_of_a_stream_is_held_back() -> None:
    """The first event arrives while the application waits to be told to go on, which happens only then."""
    world = http_app.build()

    def go_on(reply: Reply) -> None:
        if len(reply.messages) == 2:
            world.held.set()

    async def run() -> Reply:
        body = [json.dumps({"act": "stream hangs"}).encode()]
        return await asyncio.wait_for(call(world.app, CHAT, "POST", JSON, body, go_on), 30)

    reply = asyncio.run(run())
    assert reply.messages[1]["body"] == http_app.CHUNK
    assert b"late" in reply.body
