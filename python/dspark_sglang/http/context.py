"""What the layer knows of one request, from its arrival to its last byte."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark_sglang.http.errors import ApiError

KEY = "dspark.request"
HEADER = b"x-request-id"
# No spaces, control characters or quotes, so that an id can stand in a log line and a header as it came.
_VALID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}\Z")

# The id of the request that the running task answers; empty outside of requests.
REQUEST_ID: ContextVar[str] = ContextVar("dspark_request_id", default="")


@dataclass(slots=True)
class RequestContext:
    """One request.

    Attributes
    ----------
    request_id : str
        The client's own, or made here.
    null_usage : bool
        Whether every chunk of the stream must have a ``usage``, null on all but the last.
    refusal : ApiError or None
        Replaces whatever the application answers; set by a part that the application called, such as the body's reader.
    cut : ApiError or None
        Why the request was ended before it was answered.
    """

    request_id: str
    null_usage: bool = False
    refusal: ApiError | None = None
    cut: ApiError | None = None


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client's ``x-request-id`` if it is 1 to 128 harmless characters, else a new one."""
    for name, value in headers:
        if name == HEADER:
            return value.decode("ascii") if _VALID.match(value) else _new_id()
    return _new_id()


def context_of(scope: Any) -> RequestContext | None:
    """Return the context that the layer put into an ASGI scope, None where no layer did."""
    found = scope.get(KEY) if isinstance(scope, dict) else None
    return found if isinstance(found, RequestContext) else None


def _new_id() -> str:
    return f"req_{secrets.token_hex(16)}"
