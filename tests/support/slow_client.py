"""A client that asks for a stream and does not read it: what is sent piles up until the server must wait."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.support.server import REQUEST_S, ServerProcess

# The kernel makes it a few kilobytes; the server's side keeps its own, larger buffer.
RECEIVE_BYTES = 1024


class SlowClient:
    """One streamed request over a connection that takes next to nothing; a context manager.

    Parameters
    ----------
    server : ServerProcess
    path, payload : str, dict
        As for `ServerProcess.stream`.

    Attributes
    ----------
    received : int
        Bytes read.
    """

    def __init__(self, server: ServerProcess, path: str, payload: dict[str, Any]) -> None:
        body = json.dumps({**payload, "stream": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.received = 0
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._socket.settimeout(REQUEST_S)
        self._socket.connect(("127.0.0.1", server.port))
        self._socket.sendall(head.encode() + body)

    def __enter__(self) -> SlowClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read_all(self) -> list[dict[str, Any]]:
        """Read to the end of the connection; returns the events."""
        received = bytearray()
        while chunk := self._socket.recv(1 << 16):
            received += chunk
        self.received = len(received)
        assert received.startswith(b"HTTP/1.1 200"), bytes(received[:200])
        assert b"data: [DONE]" in received
        # Events may be cut by the lines of the chunked encoding only between them: each is written at once.
        lines = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
        return [json.loads(line[6:]) for line in lines]
