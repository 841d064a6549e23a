"""The middleware that looks at what the application answers: errors get their shape, streams their end.

Nothing of a stream is held back but its headers until its first event, so that a refusal that SGLang finds after it
has begun to stream still gets its own status.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

from dspark_sglang.http import errors
from dspark_sglang.http.asgi import App, Message, Receive, Scope, Send
from dspark_sglang.http.classify import classify
from dspark_sglang.http.context import RequestContext, context_of
from dspark_sglang.http.drain import Drain
from dspark_sglang.http.errors import ApiError
from dspark_sglang.http.strict import mend_event

logger = logging.getLogger(__name__)

# How a stream of OpenAI's or SGLang's own begins an error; the space depends on the encoder.
_ERROR_EVENTS = (b'data: {"error":', b'data: {"object":"error"', b'data: {"object": "error"')
# Upstream: 0.5.23 lets these routes' complaints about a request out as plain ValueError. Remove when it answers 400.
_CHECKED_LATE = ("/v1/loads",)
# A client that does not read what it is sent cannot be told either.
_TELL_S = 1.0


class Answers:
    """Shapes errors, ends what has to end, and counts what is under way.

    Parameters
    ----------
    app : ASGI application
        Whose answers are looked at.
    drain : Drain
        Is told of each request, and ends it by cancelling its task.
    """

    def __init__(self, app: App, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        context = context_of(scope)
        task = asyncio.current_task()
        if scope["type"] != "http" or context is None or task is None:
            await self.app(scope, receive, send)
            return
        answer = _Answer(scope, send, context, self.drain)
        self.drain.enter(context, task)
        try:
            await self.app(scope, receive, answer.send)
        except asyncio.CancelledError:
            if context.cut is None:
                raise
            task.uncancel()
            await answer.tell(context.cut)
        except ApiError as error:
            await answer.fail(error)
        except Exception as error:  # noqa: BLE001 - the boundary: what goes wrong is logged, and the client is told
            if isinstance(error, ValueError) and scope["path"] in _CHECKED_LATE:
                await answer.fail(ApiError(400, str(error), "invalid_value"))
            else:
                logger.exception("request %s failed: %s %s", context.request_id, scope["method"], scope["path"])
                await answer.fail(errors.internal(context.request_id))
        finally:
            self.drain.leave(context)


class _Answer:
    """One response on its way: not begun, held back until its first body, or passed on."""

    def __init__(self, scope: Scope, send: Send, context: RequestContext, drain: Drain) -> None:
        self._send = send
        self._context = context
        self._drain = drain
        self._method: str = scope["method"]
        self._path: str = scope["path"]
        self._held: Message | None = None
        self._body = b""
        self._started = False
        self._streams = False
        self._ended = False

    async def send(self, message: Message) -> None:
        """Take one message of the application."""
        if self._ended:
            return
        if message["type"] == "http.response.start":
            await self._start(message)
        elif message["type"] == "http.response.body":
            if self._started and not self._streams:
                await self._pass(message)
            else:
                await self._take_body(message)
        else:
            await self._send(message)

    async def _start(self, message: Message) -> None:
        if self._context.refusal is not None:
            await self._whole(self._context.refusal)
            return
        kind = _header(message.get("headers", ()), b"content-type")
        self._streams = kind.startswith(b"text/event-stream") and not errors.keeps_its_own_errors(self._path)
        if self._streams or (message["status"] >= 400 and self._may_shape(message["status"], kind)):
            self._held = message
            return
        self._started = True
        await self._send(message)

    def _may_shape(self, status: int, kind: bytes) -> bool:
        if errors.keeps_its_own_errors(self._path):
            return False
        # What an operator's tools read as plain text, such as /health and /flush_cache, stays so.
        ours = self._path.startswith(("/v1/", "/dspark/", "/generate")) or status in (401, 403, 404, 405)
        return ours or kind.startswith(b"application/json")

    async def _take_body(self, message: Message) -> None:
        body = bytes(message.get("body", b""))
        if not self._streams:
            self._body += body
            if not message.get("more_body", False):
                await self._finish_error()
            return
        failed = body.startswith(_ERROR_EVENTS)
        if self._held is not None:
            refusal = self._stream_error(body) if failed else self._native_refusal(body)
            if refusal is not None:
                await self._whole(refusal)
                return
            self._started = True
            await self._send(self._held)
            self._held = None
        if failed:
            message = {**message, "body": self._stream_error(body).chunk()}
        elif self._context.null_usage:
            message = {**message, "body": mend_event(body)}
        await self._pass(message)

    async def _finish_error(self) -> None:
        """Send the collected error in its shape, or as it came where it is none that the layer knows."""
        assert self._held is not None
        status: int = self._held["status"]
        document = _decoded(self._body)
        if isinstance(document, dict) and not (
            {"error", "detail"} & set(document) or document.get("object") == "error"
        ):
            self._started = True
            await self._send(self._held)
            await self._pass({"type": "http.response.body", "body": self._body, "more_body": False})
            return
        error = classify(status, document, self._method, self._path, self._context.request_id)
        for name, value in self._held.get("headers", ()):
            if name.lower() in (b"allow", b"retry-after", b"www-authenticate", b"connection"):
                error.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        await self._whole(error)

    def _native_refusal(self, body: bytes) -> ApiError | None:
        """Return why the first event of a native stream is its last, None where it is none of a refusal.

        The scheduler's refusals come as the result of a request that was aborted before its first token. One of several
        answers in a stream, which has an index, leaves the stream to the others.
        """
        if b'"status_code"' not in body or not self._path.startswith("/generate"):
            return None
        document = _event_document(body)
        reason = document.get("meta_info", {}).get("finish_reason") if isinstance(document, dict) else None
        if not isinstance(reason, dict) or reason.get("type") != "abort" or "index" in document:
            return None
        return self._classified(reason.get("status_code"), reason)

    def _stream_error(self, body: bytes) -> ApiError:
        document = _event_document(body)
        fields = document.get("error", document) if isinstance(document, dict) else {}
        return self._classified(fields.get("code") if isinstance(fields, dict) else None, document)

    def _classified(self, code: Any, document: Any) -> ApiError:
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        return classify(status, document, self._method, self._path, self._context.request_id)

    async def fail(self, error: ApiError) -> None:
        """Answer with an error in place of what the application could not finish."""
        if self._ended:
            return
        if not self._started:
            await self._whole(error)
        elif self._streams:
            await self._end(error.event(self._path))
        else:
            # Half a JSON document: only a broken connection says that the rest is missing.
            raise error

    async def tell(self, error: ApiError) -> None:
        """Answer with an error, unless the client does not take it within a second."""
        try:
            await asyncio.wait_for(self.fail(error), _TELL_S)
        except (TimeoutError, ApiError):
            logger.warning("request %s was ended, and its client could not be told", self._context.request_id)

    async def _whole(self, error: ApiError) -> None:
        """Send an error as the whole response."""
        response = error.response(self._path)
        self._started = True
        await self._send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
        await self._end(bytes(response.body))

    async def _end(self, body: bytes) -> None:
        await self._pass({"type": "http.response.body", "body": body, "more_body": False})

    async def _pass(self, message: Message) -> None:
        if not message.get("more_body", False):
            # What the application does after its last byte holds up no shutdown.
            self._ended = True
            self._drain.leave(self._context)
        await self._send(message)


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key.lower() == name), b"")


def _event_document(body: bytes) -> Any:
    return _decoded(body.partition(b"\n\n")[0].removeprefix(b"data: "))


def _decoded(body: bytes) -> Any:
    """Decode JSON; text that is none comes back as text, nothing as None."""
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
