"""Whatever a client sends, it is answered: in the right shape, with an id, and without a fault of the layer."""

from __future__ import annotations

import asyncio
import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sglang.http import errors
from dspark_sglang.http.classify import classify
from dspark_sglang.http.validation import validation_error
from tests.support import http_app
from tests.support.asgi import Reply, call

PATHS = ["/v1/chat/completions", "/v1/responses", "/generate", "/v1/messages", "/v1/none", "/free", "/admin", "/health"]
ACTS = ["", "queue full", "raise queue full", "crash", "whole crash", "stream", "stream refused", "stream aborted"]
ACTS += ["stream fails", "stream crashes", "stream usage"]
# Header values are bytes without line ends by the time that they reach an application.
HEADER = st.binary(max_size=200).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b""))
NAMES = [
    b"x-request-id",
    b"content-type",
    b"content-length",
    b"authorization",
    b"x-dspark-warmup",
    b"origin",
    b"expect",
]
# Halves of surrogate pairs, too, which a JSON document can spell and no encoding has.
ANY_CHARACTER = st.characters(exclude_categories=())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(ANY_CHARACTER, max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={"act": st.sampled_from(ACTS) | JSON, "temperature": JSON, "messages": JSON, "model": JSON},
)
BODY = st.binary(max_size=2 * http_app.LIMIT_BYTES) | REQUEST.map(lambda body: json.dumps(body).encode())


def check(reply: Reply, path: str) -> None:
    assert reply.complete
    assert 200 <= reply.status < 600
    assert re.fullmatch(r"[A-Za-z0-9._:/+=-]{1,128}", reply.headers["x-request-id"])
    assert b"secret" not in reply.body
    if reply.status >= 400 and path not in ("/v1/messages", "/health"):
        error = reply.error
        assert list(error) == ["message", "type", "param", "code"]
        assert isinstance(error["message"], str)
        assert error["message"]
        assert all(error[name] is None or isinstance(error[name], str) for name in ("param", "code"))
        assert int(reply.headers["content-length"]) == len(reply.body)


@settings(max_examples=300, deadline=None)
@given(
    path=st.sampled_from(PATHS),
    method=st.sampled_from(["POST", "GET", "PUT", "DELETE", "OPTIONS"]),
    headers=st.lists(st.tuples(st.sampled_from(NAMES), HEADER), max_size=5),
    is_json=st.booleans(),
    body=BODY,
    cuts=st.lists(st.integers(0, 2 * http_app.LIMIT_BYTES), max_size=3),
    closed=st.booleans(),
)
def test_any_request(
    path: str,
    method: str,
    headers: list[tuple[bytes, bytes]],
    is_json: bool,
    body: bytes,
    cuts: list[int],
    closed: bool,
) -> None:
    world = http_app.build()
    world.closed = errors.draining() if closed else None
    marks = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    chunks = [body[start:end] for start, end in zip(marks, marks[1:], strict=False)]
    if is_json:
        headers = [(b"content-type", b"application/json"), *headers]
    reply = asyncio.run(asyncio.wait_for(call(world.app, path, method, headers, chunks), 30))
    check(reply, path)
    assert not world.drain._requests


@settings(max_examples=300, deadline=None)
@given(status=st.integers(400, 599), body=JSON, path=st.text(max_size=30))
def test_any_error_body(status: int, body: object, path: str) -> None:
    error = classify(status, body, "POST", path, "id")
    assert error.message
    assert 400 <= error.status < 600
    assert json.loads(error.response(path).body)
    assert error.event(path).endswith(b"\n\n")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"msg": st.text(max_size=40), "loc": st.lists(st.text(max_size=10) | st.integers(0, 9), max_size=5)},
            optional={
                "type": st.sampled_from(["missing", "json_invalid", "value_error"]),
                "ctx": st.none() | st.just({}),
            },
        ),
        max_size=6,
    )
)
def test_any_finding_of_the_validation(details: list[dict[str, object]]) -> None:
    error = validation_error(details)
    assert error.status == 400
    assert error.message
