"""SGLang's gateway before scripted replicas: what a client sees of one that breaks, and what it counts."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai
import pytest
import requests

from dspark_loadtest.endpoint import Endpoint
from dspark_loadtest.mock.script import Script
from dspark_loadtest.mock.server import MODEL as MOCK
from dspark_loadtest.mock.server import MockServer
from dspark_loadtest.plan import Plan
from dspark_loadtest.session import Workload, look_at, measure
from dspark_loadtest.traces.request import Trace, TraceRequest
from tests.support.cluster import Gateway

QUICK = {"ttft_s": 0.0, "tpot_s": 0.0}
BREAKS = Script(**QUICK, fault="disconnect", fault_after_tokens=5)
REFUSES = Script(**QUICK, fault="503")
# Slow enough that requests overlap, and load decides between replicas.
SOUND = Script(ttft_s=0.02, tpot_s=0.0)
TOKENS = 12
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "t0 "}, "finish_reason": null}]}\n\n'


@contextmanager
def gateway(folder: Path, *scripts: Script) -> Iterator[Gateway]:
    """Run a gateway before one mock per script."""
    with ExitStack() as stack:
        mocks = [stack.enter_context(MockServer(script)) for script in scripts]
        made = Gateway([mock.url for mock in mocks], folder / "gateway.log")
        stack.callback(made.stop)
        made.start()
        yield made


def work(requests_: int) -> Workload:
    """Ask so many short questions, four at a time, none of them twice."""
    asked = tuple(TraceRequest(input_length=20 + i, output_length=TOKENS) for i in range(requests_))
    return Workload(Trace(asked), plan=Plan(concurrency=4), warm_up=0)


def events(url: str, model: str = MOCK) -> list[str]:
    """Stream one answer and give its events as they are on the wire."""
    body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS, "stream": True}
    with requests.post(f"{url}/v1/chat/completions", json=body, stream=True, timeout=60) as reply:
        assert reply.status_code == 200
        return [line[6:].decode() for line in reply.iter_lines() if line.startswith(b"data: ")]


def test_a_stream_whose_replica_is_gone_ends_with_an_error(tmp_path: Path) -> None:
    with gateway(tmp_path, BREAKS) as made:
        *_, text, error, done = events(made.url)
        assert ('"t4 "' in text, done) == (True, "[DONE]")
        assert '"type":"stream_error"' in error
        # Nothing may look like an end that was reached.
        assert 'finish_reason": "' not in text
        client = openai.OpenAI(base_url=f"{made.url}/v1", api_key="x", max_retries=0)
        asked = {"model": MOCK, "messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS}
        with pytest.raises(openai.APIError, match="Stream error"):
            list(client.chat.completions.create(**asked, stream=True))
        measured = measure(look_at(made.url, []), work(6), show=False)
        assert measured.summary["requests"]["outcomes"] == {"stream_error": 6}


def test_a_refusal_before_the_first_token_is_asked_of_another_replica(tmp_path: Path) -> None:
    with gateway(tmp_path, REFUSES, SOUND) as made:
        measured = measure(look_at(made.url, []), work(20), show=False)
        assert measured.summary["requests"]["ok"] == 20
        assert {record.replica for record in measured.outcome.records} == {made.workers[1]}


def test_a_load_test_through_the_gateway_counts_with_all_replicas(tmp_path: Path) -> None:
    with gateway(tmp_path, SOUND, SOUND) as made:
        measured = measure(look_at(made.url, []), work(40), show=False)
        assert {record.replica for record in measured.outcome.records} == set(made.workers)
        found = measured.summary["reconciliation"]
        assert found["completion"]["server"] == found["completion"]["answered"] == 40 * TOKENS
        assert found["requests"]["server"] == 40
        one = Endpoint(made.workers[0]).metrics()
        assert one is not None
        assert 0 < one["num_requests_total"] < 40
    assert measured.summary["problems"] == []


class HalfAnEvent(BaseHTTPRequestHandler):
    """Streams one event and the first half of another; then its connection is reset."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        body = b'{"data": [{"id": "half"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = b"%x\r\n" % len(EVENT)
        self.wfile.write(head + EVENT + b"\r\n" + head + EVENT[:30])
        # A reset, as from a process that was killed with data unread.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def test_half_an_event_is_not_glued_to_the_error_that_follows(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HalfAnEvent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    made = Gateway([f"http://127.0.0.1:{server.server_port}"], tmp_path / "gateway.log")
    try:
        made.start()
        *_, error, done = events(made.url, "half")
        assert '"type":"stream_error"' in error
        assert error.startswith('{"error"')
        assert done == "[DONE]"
    finally:
        made.stop()
        server.shutdown()
        thread.join()
        server.server_close()
