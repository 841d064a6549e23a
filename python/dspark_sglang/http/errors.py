"""One refusal or failure, in every shape that a client of this server may expect it in."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

INVALID_REQUEST = "invalid_request_error"
MESSAGE_LIMIT = 2000

# Status -> type of the error, as OpenAI's clients know it; anything else from 500 on is a server_error.
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "service_unavailable"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Seconds; drawn anew for each answer, so that clients that were turned away together do not come back together.
_RETRY_AFTER_S = (1, 5)


@dataclass(eq=False)
class ApiError(Exception):
    """What a client is told instead of what it asked for.

    Attributes
    ----------
    status : int
        HTTP status, 400 to 599.
    message : str
        One sentence; cut at `MESSAGE_LIMIT` characters.
    code : str or None
        What a program tells the cause by.
    param : str or None
        The request's field that is at fault.
    headers : dict
        Sent along, names in lower case.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)
        if len(self.message) > MESSAGE_LIMIT:
            self.message = self.message[:MESSAGE_LIMIT] + "..."

    @property
    def type(self) -> str:
        """Kind of the error, given by the status."""
        return _TYPES.get(self.status, INVALID_REQUEST if self.status < 500 else "server_error")

    def fields(self) -> dict[str, Any]:
        """Return the four fields of OpenAI's error object."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def document(self, path: str) -> dict[str, Any]:
        """Return the body for a request to ``path``: OpenAI's shape, or that of the other API that ``path`` is of."""
        if is_anthropic(path):
            kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        if is_ollama(path):
            return {"error": self.message}
        return {"error": self.fields()}

    def event(self, path: str) -> bytes:
        """Return the end of an event stream that cannot go on: the error, then what the API ends its streams with."""
        if is_anthropic(path):
            return b"event: error\ndata: " + _compact(self.document(path)) + b"\n\n"
        if path.startswith("/v1/responses"):
            body = {"type": "error", "code": self.code, "message": self.message, "param": self.param}
            return b"event: error\ndata: " + _compact(body) + b"\n\n"
        return self.chunk() + b"data: [DONE]\n\n"

    def chunk(self) -> bytes:
        """Return the error as one event of an OpenAI stream."""
        return b"data: " + _compact({"error": self.fields()}) + b"\n\n"

    def response(self, path: str) -> Response:
        """Return it as the whole response to a request to ``path``."""
        return Response(_compact(self.document(path)), self.status, self.headers, "application/json")

    def retried_later(self) -> ApiError:
        """Return the same with a ``Retry-After``, unless it has one or says not to retry."""
        if "retry-after" in self.headers or self.headers.get("x-should-retry") == "false":
            return self
        return replace(self, headers={**self.headers, "retry-after": str(random.randint(*_RETRY_AFTER_S))})


def is_anthropic(path: str) -> bool:
    """Whether ``path`` belongs to Anthropic's API."""
    return path.startswith("/v1/messages")


def is_ollama(path: str) -> bool:
    """Whether ``path`` belongs to Ollama's API."""
    return path.startswith("/api/")


def keeps_its_own_errors(path: str) -> bool:
    """Whether what SGLang answers on ``path`` has another documented error shape than OpenAI's."""
    return is_anthropic(path) or is_ollama(path) or path.startswith("/v1/systemone")


def too_large(limit_bytes: int) -> ApiError:
    """Return the refusal of a body above the limit; the rest of it is not read, so the connection closes."""
    message = f"the request body is larger than {limit_bytes} bytes, the limit of this server (--max-body-mib)"
    return ApiError(413, message, "request_too_large", headers={"connection": "close"})


def starting() -> ApiError:
    """Return the refusal of a request that came before the server is warm."""
    return ApiError(503, "the server is starting; try again in a few seconds", "server_starting").retried_later()


def draining() -> ApiError:
    """Return the refusal of a request that came, or has not ended, while the server is stopping."""
    error = ApiError(503, "the server is shutting down; send the request to another one", "server_draining")
    return replace(error.retried_later(), headers={**error.retried_later().headers, "connection": "close"})


def internal(request_id: str) -> ApiError:
    """Return what a client learns of a fault of the server: where the operator finds it, and nothing of its inside."""
    return ApiError(500, f"internal error; the server's log has it under request id {request_id}", "internal_error")


def _compact(document: dict[str, Any]) -> bytes:
    # A client can put half a surrogate pair into a message, which no encoding has.
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
