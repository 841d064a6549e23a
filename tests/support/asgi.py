"""One request to an ASGI application, message by message, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Messages = list[dict[str, Any]]


@dataclass
class Reply:
    """What an application sent."""

    messages: Messages = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])

    @property
    def complete(self) -> bool:
        return bool(self.messages) and not self.messages[-1].get("more_body", False)


async def call(
    app: Any,
    path: str,
    method: str = "POST",
    headers: Sequence[tuple[bytes, bytes]] = (),
    chunks: Sequence[bytes] = (b"",),
    on_message: Callable[[Reply], None] | None = None,
) -> Reply:
    """Send one request and return the reply; the client stays connected until it has all of it.

    Parameters
    ----------
    chunks : sequence of bytes
        Of the body, as they arrive.
    on_message : callable, optional
        Called with the reply so far at each message of the application.
    """
    reply, waiting = Reply(), list(chunks)

    async def receive() -> dict[str, Any]:
        if waiting:
            chunk = waiting.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(waiting)}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        assert not reply.complete or not reply.messages[1:], "a message after the last"
        reply.messages.append(message)
        if on_message is not None:
            on_message(reply)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(name.lower(), value) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await app(scope, receive, send)
    return reply
