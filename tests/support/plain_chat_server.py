"""An OpenAI-compatible chat server without streaming, scripted request by request; runs in a thread of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[int, dict[str, Any]], tuple[int, dict[str, Any]]]


def completion(text: str, reason: str = "stop", tokens: int = 3) -> dict[str, Any]:
    """Compose a chat completion."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


class PlainChatServer:
    """Answers the n-th request with what ``answer(n, body)`` returns: a status and a JSON body."""

    def __init__(self, answer: Answer) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802
                self._reply(200, {"data": [{"id": "the-model"}]})

            def do_POST(self) -> None:  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(outer.bodies)
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                self._reply(*answer(number, body))

            def _reply(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> PlainChatServer:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
