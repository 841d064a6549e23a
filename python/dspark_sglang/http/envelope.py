"""The outermost middleware: every request gets an id, and every response carries it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dspark_sglang.http.asgi import App, Message, Receive, Scope, Send
from dspark_sglang.http.context import HEADER, KEY, REQUEST_ID, RequestContext, request_id_of


class Envelope:
    """Names each request and stamps each response.

    Parameters
    ----------
    app : ASGI application
    on_lifespan : callable
        Called once when the server starts the application, inside the event loop.
    closing : callable
        Whether connections are to be closed after their response.
    """

    def __init__(self, app: App, on_lifespan: Callable[[], None], closing: Callable[[], bool]) -> None:
        self.app = app
        self._on_lifespan = on_lifespan
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        if scope["type"] == "lifespan":
            self._on_lifespan()
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        context = RequestContext(request_id_of(scope["headers"]))
        scope[KEY] = context
        REQUEST_ID.set(context.request_id)

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (HEADER, context.request_id.encode())]
                if self._closing() and all(name.lower() != b"connection" for name, _ in headers):
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        await self.app(scope, receive, stamped)


class WithRequestId(logging.Formatter):
    """An access log's own format with the request id behind it."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Format a record that is made while its response is sent."""
        return f"{self._inner.format(record)} {REQUEST_ID.get()}".rstrip()


def log_request_ids() -> None:
    """Put request ids into uvicorn's access log, once it has been configured."""
    for handler in logging.getLogger("uvicorn.access").handlers:
        if handler.formatter is not None and not isinstance(handler.formatter, WithRequestId):
            handler.setFormatter(WithRequestId(handler.formatter))
