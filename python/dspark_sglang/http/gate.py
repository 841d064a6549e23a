"""The middlewares that turn a request away before it is read: while starting or draining, and above the size limit."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from dspark_sglang.http import errors
from dspark_sglang.http.asgi import App, Message, Receive, Scope, Send
from dspark_sglang.http.context import context_of
from dspark_sglang.http.errors import ApiError

WARMUP_HEADER = b"x-dspark-warmup"
_READING = ("GET", "HEAD", "OPTIONS")


class Gate:
    """Refuses work while the server is starting or draining; probes, reading and administration go on.

    Parameters
    ----------
    app : ASGI application
    closed : callable
        Gives the refusal of new work, None while the server serves.
    is_admin : callable
        Whether a request's scope is one of an endpoint for operators.
    warmup_key : str
        Lets the server's own warm-up in, sent as ``x-dspark-warmup``.
    """

    def __init__(
        self, app: App, closed: Callable[[], ApiError | None], is_admin: Callable[[Scope], bool], warmup_key: str
    ) -> None:
        self.app = app
        self._closed = closed
        self._is_admin = is_admin
        self._warmup_key = warmup_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request in or raise `ApiError`."""
        if scope["type"] == "http" and scope["method"] not in _READING:
            refusal = self._closed()
            if refusal is not None and not self._is_warmup(scope) and not self._is_admin(scope):
                raise refusal
        await self.app(scope, receive, send)

    def _is_warmup(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == WARMUP_HEADER), b"")
        return secrets.compare_digest(given, self._warmup_key)


class BodyLimit:
    """Refuses bodies above a limit: by their announced length before a byte is read, else at the byte above it.

    Parameters
    ----------
    app : ASGI application
    limit_bytes : int
    """

    def __init__(self, app: App, limit_bytes: int) -> None:
        self.app = app
        self.limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or raise `ApiError`, before which no "100 Continue" has been sent."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if announced is not None and announced.isdigit():
            if int(announced) > self.limit_bytes:
                raise errors.too_large(self.limit_bytes)
            # The HTTP server holds the body to what it announced.
            await self.app(scope, receive, send)
            return
        await self.app(scope, self._counted(scope, receive), send)

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self.limit_bytes:
                    error = errors.too_large(self.limit_bytes)
                    context = context_of(scope)
                    if context is not None:
                        # The application takes what its reader raises for a broken body and answers 400.
                        context.refusal = error
                    raise error
            return message

        return counted
