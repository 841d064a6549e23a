"""A real server's manners: every refusal in one shape with its own status, ids, limits, usage, and slots set free."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.support import pair
from tests.support.server import REQUEST_S, ServerProcess

pytestmark = pytest.mark.server
CHAT, ORIGIN = "/v1/chat/completions", "http://page.example"
RUNNING, QUEUED = 2, 2
FLAGS = [
    *("--max-running-requests", str(RUNNING), "--max-queued-requests", str(QUEUED)),
    *("--max-body-mib", "0.25", "--cors-origins", ORIGIN),
]
LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair with a queue of two; no request may leave a trace of a fault in the log."""
    pytest.importorskip("sglang")
    folder = tmp_path_factory.mktemp("http")
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), *FLAGS]
    flags += ["--step-time-profile", str(folder / "step-times.json")]
    with ServerProcess(flags, folder / "log", **pair.SERVER_ENVIRONMENT).serving() as started:
        yield started


def error_of(response: requests.Response, status: int, code: str | None, param: str | None = None) -> dict[str, Any]:
    """Check the shape and the cause of an error, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert isinstance(error["type"], str)
    assert (error["code"], error["param"]) == (code, param)
    assert "Traceback" not in error["message"]
    assert "site-packages" not in error["message"]
    return dict(error)


def raw_post(server: ServerProcess, path: str, content: bytes, kind: str = "application/json") -> requests.Response:
    return requests.post(server.url + path, data=content, headers={"Content-Type": kind}, timeout=REQUEST_S)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"model": "gpt-4"}, 404, "model_not_found", "model"),
        ({"messages": None}, 400, "invalid_value", "messages"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
        ({"temperature": -1}, 400, "invalid_value", "temperature"),
        ({"top_p": 7}, 400, "invalid_value", "top_p"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "context_length_exceeded", "messages"),
    ],
)
def test_chat_errors(
    server: ServerProcess, changes: dict[str, Any], status: int, code: str, param: str, stream: bool
) -> None:
    path, payload = pair.chat("What is 2 + 3?", **changes)
    response = server.post(path, {**payload, "stream": stream})
    error_of(response, status, code, param)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"input_ids": list(range(1, 700))}, "context_length_exceeded", None),
        ({"sampling_params": {"top_p": 7}}, "invalid_value", "top_p"),
        ({"input_ids": [1, 10**6]}, "invalid_value", "input_ids"),
        ({"input_ids": [[1, 2], [3, -1]]}, "invalid_value", "input_ids"),
        ({"input_ids": [[1, 2], [3, 4]], "sampling_params": [{}]}, None, None),
    ],
)
def test_native_errors(
    server: ServerProcess, changes: dict[str, Any], code: str | None, param: str | None, stream: bool
) -> None:
    """SGLang begins a native stream with status 200 before it looks at the request; here it gets its own."""
    path, payload = pair.generate(pair.prompts()[0])
    response = server.post(path, {**payload, **changes, "stream": stream})
    error_of(response, 400, code, param)


def test_what_is_no_request(server: ServerProcess) -> None:
    error_of(requests.get(server.url + "/v1/none", timeout=60), 404, "unknown_url")
    response = requests.get(server.url + CHAT, timeout=60)
    error_of(response, 405, "method_not_supported")
    assert response.headers["allow"] == "POST"
    error_of(raw_post(server, CHAT, b'{"model'), 400, "invalid_json")
    error_of(
        raw_post(server, CHAT, b"model=default", "application/x-www-form-urlencoded"), 400, "unsupported_content_type"
    )
    error_of(raw_post(server, CHAT, b"{}"), 400, "missing_required_parameter", "messages")
    error_of(raw_post(server, "/v1/completions", b'{"model": "x", "prompt": "a"}'), 404, "model_not_found", "model")
    error_of(raw_post(server, "/v1/responses", b'{"model": "x", "input": "a"}'), 404, "model_not_found", "model")
    error_of(raw_post(server, "/v1/embeddings", b'{"model": "default", "input": "a"}'), 400, None)
    error_of(requests.get(server.url + "/v1/models/none", timeout=60), 404, "model_not_found", "model")
    error_of(raw_post(server, "/dspark/policy", b"["), 400, None)
    error_of(raw_post(server, "/v1/completions", b'{"prompt": [3000000]}'), 400, "invalid_value", "input_ids")
    error_of(
        raw_post(server, "/v1/detokenize", b'{"model": "default", "tokens": [-1]}'), 400, "invalid_value", "tokens"
    )
    for empty in (b'{"prompt": ""}', b'{"prompt": ["", "", "", "", "", ""]}', b'{"prompt": ["a", ""]}'):
        assert raw_post(server, "/v1/completions", empty).status_code == 400
    error_of(requests.get(server.url + "/v1/loads?include=none", timeout=60), 400, "invalid_value")
    error_of(requests.get(server.url + "/dspark/records?after=x", timeout=60), 400, "invalid_value", "after")


def test_the_default_model_has_its_name_everywhere(server: ServerProcess) -> None:
    served = requests.get(server.url + "/v1/models", timeout=60).json()["data"][0]["id"]
    for name in ("default", served):
        assert server.ask(*pair.chat("What is 2 + 3?", model=name, max_tokens=2))["model"] == name
        body = {"model": name, "input": "What is 2 + 3?", "max_output_tokens": 2}
        assert server.post("/v1/responses", body).status_code == 200


def test_a_full_queue_is_429(server: ServerProcess) -> None:
    """While two run and two wait, all others are told to come back, streamed or not."""
    questions = [pair.chat("What is 2 + 3?", **LONG, stream=index % 2 == 0) for index in range(8)]
    prompt = pair.prompts()[0]
    natives = [pair.generate(prompt, max_new_tokens=350, ignore_eos=True) for _ in range(4)]
    asked: list[tuple[str, dict[str, Any]]] = [
        *questions,
        *((path, {**payload, "stream": index % 2 == 0}) for index, (path, payload) in enumerate(natives)),
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        replies = list(pool.map(lambda request: server.post(*request), asked))
    refused = [reply for reply in replies if reply.status_code != 200]
    assert len(replies) - len(refused) >= QUEUED
    assert refused
    for reply in refused:
        assert error_of(reply, 429, "queue_full")["type"] == "rate_limit_error"
        assert 1 <= int(reply.headers["retry-after"]) <= 5
    for reply in replies:
        assert '"abort"' not in reply.text


def test_request_ids(server: ServerProcess) -> None:
    for sent, kept in (("trace-7", True), ("not allowed", False)):
        response = requests.get(server.url + "/v1/models", headers={"x-request-id": sent}, timeout=60)
        assert (response.headers["x-request-id"] == sent) == kept
    (line,) = [line for line in server.log().splitlines() if line.endswith("trace-7")]
    assert '"GET /v1/models HTTP/1.1" 200' in line


def talk(server: ServerProcess, head: str, body: bytes = b"") -> bytes:
    """Send bytes on a connection and return what comes back until it closes or goes quiet."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + body)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
            if received.startswith(b"HTTP/1.1 100") or b"\r\n0\r\n\r\n" in received:
                break
        return received


def test_size_limits(server: ServerProcess) -> None:
    start = f"POST {CHAT} HTTP/1.1\nHost: x\nContent-Type: application/json\n"
    limit = 2**18
    refused = talk(server, f"{start}Content-Length: {limit + 1}\nExpect: 100-continue\n\n")
    assert refused.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in refused
    assert b"request_too_large" in refused
    assert talk(server, f"{start}Content-Length: {limit}\nExpect: 100-continue\n\n").startswith(b"HTTP/1.1 100 ")
    chunk = b"%x\r\n" % (limit + 1) + b" " * (limit + 1) + b"\r\n0\r\n\r\n"
    assert talk(server, f"{start}Transfer-Encoding: chunked\n\n", chunk).startswith(b"HTTP/1.1 413")


def test_pages_of_one_origin_may_read(server: ServerProcess) -> None:
    for origin, allowed in ((ORIGIN, ORIGIN), ("http://other.example", None)):
        response = requests.get(server.url + "/v1/none", headers={"Origin": origin}, timeout=60)
        assert response.headers.get("access-control-allow-origin") == allowed
        assert "access-control-allow-credentials" not in response.headers
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = requests.options(server.url + CHAT, headers=asks, timeout=60)
        assert preflight.headers.get("access-control-allow-origin") == allowed


def test_usage_and_spec_details(server: ServerProcess) -> None:
    details = {"return_spec_tokens_details": True}
    whole = server.ask(*pair.chat("What is 2 + 3?", **LONG, **details))
    path, payload = pair.chat("What is 2 + 3?", **LONG, **details, stream_options={"include_usage": True})
    events = list(server.stream(path, payload))
    assert all("usage" in event and event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == LONG["max_tokens"]
    for found in (whole["sglext"], next(event["sglext"] for event in events if "sglext" in event)):
        spec = found["spec_tokens_details"]
        # One token of each verification is the target's own.
        assert spec["spec_verify_ct"] + spec["spec_num_correct_drafts"] >= LONG["max_tokens"] - 1
        assert spec["spec_accept_length"] > 1
    plain = list(server.stream(*pair.chat("What is 2 + 3?", **LONG)))
    assert not any(event.get("usage") for event in plain)
    assert all(event["choices"] for event in plain)
    assert not any("role" in c["delta"] and c["delta"]["role"] is None for event in plain for c in event["choices"])


def leave(server: ServerProcess, path: str, payload: dict[str, Any], stream: bool) -> None:
    """Ask, and close the connection: after the first event of a stream, else once the scheduler has the request."""
    body = json.dumps({**payload, "stream": stream}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        if stream:
            assert b"200 OK" in connection.recv(4096)
        else:
            while not server.load()["num_running_reqs"]:
                pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_a_client_that_leaves_frees_its_slots(server: ServerProcess, stream: bool, count: int) -> None:
    path, payload = pair.chat("What is 2 + 3?", **LONG, n=count, temperature=1)
    leave(server, path, payload, stream)
    load = server.wait_until_idle()
    assert load["num_used_tokens"] == 0
