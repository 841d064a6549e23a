"""A server with DSpark's routes that records rounds of a known law for each request; runs in threads of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np

from sgl_dspark.calibration.records import RecordSet, to_wire
from tests.support.rounds import Traffic

POLICY = {"policy": "adaptive", "verify_drafts": None, "threshold": 0.5}


class FakeDsparkServer:
    """Answers chat requests with one chunk of text and records rounds for each.

    Parameters
    ----------
    gamma : int
    rounds : int
        Recorded for each chat request.
    greedy, sampled : Traffic
        Laws of the rounds of requests at temperature 0 and above.
    capacity : int
        Latest rounds that are kept.
    most : int
        Rounds in one answer.
    admin_key : str, optional
        Wanted by ``/dspark/policy`` and ``/dspark/records``.
    api_key : str, optional
        Wanted by ``GET /dspark/state``, where the admin key does not help, as with SGLang.
    on_chat : callable, optional
        Called with the body of each chat request.
    """

    def __init__(
        self,
        gamma: int = 4,
        rounds: int = 100,
        greedy: Traffic | None = None,
        sampled: Traffic | None = None,
        *,
        capacity: int = 10**9,
        most: int = 1000,
        admin_key: str | None = None,
        api_key: str | None = None,
        on_chat: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.gamma, self.rounds, self.most, self.capacity = gamma, rounds, most, capacity
        self.laws = {False: greedy or Traffic(1.5), True: sampled or Traffic(1.0, -0.8)}
        self.admin_key, self.api_key, self.on_chat = admin_key, api_key, on_chat
        self.policy: dict[str, Any] = dict(POLICY)
        self.policies: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        # The policy in force at each chat request.
        self.verifying: list[Any] = []
        self.records = RecordSet.empty(gamma)
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()

    def record(self, count: int, sampled: bool = False) -> None:
        """Record rounds of users' requests."""
        with self._lock:
            drawn = self.laws[sampled].draw(count, self._rng, self.gamma, sampled)
            self.records = RecordSet.concat([self.records, drawn])

    def __enter__(self) -> FakeDsparkServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def get(self, path: str) -> dict[str, Any] | None:
        """Answer a GET; None: there is no such route."""
        parts = urlparse(path)
        if parts.path == "/dspark/state":
            return {"policy": self.policy, "model": {"gamma": self.gamma}}
        if parts.path == "/dspark/records":
            total = len(self.records)
            after = int(parse_qs(parts.query)["after"][0])
            first = min(max(after, total - self.capacity), total)
            last = min(total, first + self.most)
            return to_wire(self.records.select(np.arange(first, last)), last)
        return {"data": [{"id": "fake"}]} if parts.path == "/v1/models" else None

    def chat(self, body: dict[str, Any]) -> bytes:
        """Record rounds and stream an answer."""
        self.bodies.append(body)
        self.verifying.append(self.policy)
        if self.on_chat:
            self.on_chat(body)
        self.record(self.rounds, body["temperature"] > 0)
        text = {"choices": [{"index": 0, "delta": {"content": "text"}, "finish_reason": "length"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}
        return b"".join(f"data: {json.dumps(c)}\n\n".encode() for c in (text, usage)) + b"data: [DONE]\n\n"


def _handler(fake: FakeDsparkServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = fake.admin_key if self.path.startswith("/dspark/records") else fake.api_key
            if not self._admitted(key):
                return self._reply(401, b'{"error": "unauthorized"}')
            found = fake.get(self.path)
            return self._reply(200 if found is not None else 404, json.dumps(found).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/chat/completions":
                return self._reply(200, fake.chat(body))
            if not self._admitted(fake.admin_key):
                return self._reply(401, b'{"error": "unauthorized"}')
            fake.policy = body
            fake.policies.append(body)
            return self._reply(200, json.dumps({"policy": body}).encode())

        def _admitted(self, key: str | None) -> bool:
            return key is None or self.headers["Authorization"] == f"Bearer {key}"

        def _reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
