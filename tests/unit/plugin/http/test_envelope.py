"""Request ids, in responses and in the access log."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from dspark_sglang.http.context import REQUEST_ID, request_id_of
from dspark_sglang.http.envelope import WithRequestId, log_request_ids
from tests.support import http_app
from tests.support.asgi import call


@pytest.mark.parametrize("given", [b"a", b"trace-1.2:3_4/5+6=", b"x" * 128])
def test_a_harmless_id_is_kept(given: bytes) -> None:
    assert request_id_of([(b"x-request-id", given)]) == given.decode()


@pytest.mark.parametrize("given", [b"", b"a b", b"a\r\nb", b"\xe9", b"x" * 129, b'"', b"a\n"])
def test_another_is_replaced(given: bytes) -> None:
    assert re.fullmatch("req_[0-9a-f]{32}", request_id_of([(b"x-request-id", given)]))


def test_made_ids_differ() -> None:
    assert request_id_of([]) != request_id_of([])


@pytest.mark.parametrize("path", ["/free", "/v1/none", "/v1/chat/completions"])
def test_every_response_carries_it(path: str) -> None:
    reply = asyncio.run(call(http_app.build().app, path, "POST", [(b"x-request-id", b"mine")]))
    assert reply.headers["x-request-id"] == "mine"


def test_the_access_log_ends_with_it() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("uvicorn.access")
    log.addHandler(handler)
    try:
        log_request_ids()
        log_request_ids()
        assert isinstance(handler.formatter, WithRequestId)
        record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "GET / 200", None, None)
        assert handler.format(record) == "GET / 200"
        token = REQUEST_ID.set("mine")
        assert handler.format(record) == "GET / 200 mine"
        REQUEST_ID.reset(token)
    finally:
        log.removeHandler(handler)
