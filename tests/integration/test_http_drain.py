"""SIGTERM while 16 streams run: they end, or are told at the deadline; a second signal ends at once; keys hold."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.support import pair
from tests.support.server import REQUEST_S, STOP_S, ServerProcess, free_port, serve_command, server_environment

pytestmark = pytest.mark.server
STREAMS = 16
KEY, ADMIN = "the-key", "the-admin-key"
# Routes that change the server or show its inside; SGLang marks them, and this holds the list to account.
DANGEROUS = (
    *("/flush_cache", "/abort_request", "/pause_generation", "/continue_generation", "/start_profile", "/stop_profile"),
    *("/update_weights_from_disk", "/update_weights_from_tensor", "/update_weights_from_distributed"),
    *("/update_weights_from_ipc", "/init_weights_update_group", "/destroy_weights_update_group"),
    *("/get_weights_by_name", "/release_memory_occupation", "/resume_memory_occupation", "/weights_checker"),
    *("/load_lora_adapter", "/unload_lora_adapter", "/configure_logging", "/freeze_gc", "/slow_down"),
    *("/dspark/policy",),
)


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[ServerProcess]:
    """Serve the pair; whoever uses it ends it."""
    pytest.importorskip("sglang")
    pair_flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), *flags]
    server = ServerProcess([*pair_flags, "--step-time-profile", str(folder / "steps.json")], folder / "log")
    server.start()
    try:
        yield server
    finally:
        server.kill()


def test_sigterm_while_loading_ends_everything_at_once_and_the_log_has_no_key(tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    (tmp_path / "key").write_text(KEY)
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--drain-timeout=600"]
    flags += ["--api-key-file", str(tmp_path / "key"), "--step-time-profile", str(tmp_path / "steps.json")]
    command = serve_command(*flags, "--port", str(free_port()))
    with subprocess.Popen(
        command, env=server_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            # The first word of the process that holds the model; by then it has more than one child.
            if "Load weight begin" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        lines += process.stdout
        assert process.wait(STOP_S) == 0, "".join(lines[-40:])
    assert any("server_args=" in line for line in lines)
    assert KEY not in "".join(lines)
    assert children
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def listen(server: ServerProcess, tokens: int, begun: threading.Barrier, **headers: str) -> list[Any]:
    """Stream one answer; meet the others after the first event; return the events, whatever they are."""
    path, payload = pair.chat("What is 2 + 3?", max_tokens=tokens, ignore_eos=True, stream=True)
    events: list[Any] = []
    with requests.post(server.url + path, json=payload, headers=headers, stream=True, timeout=REQUEST_S) as response:
        assert response.status_code == 200, response.text
        for line in response.iter_lines(chunk_size=1):
            if line.startswith(b"data: "):
                events.append(line[6:].decode())
                if len(events) == 1:
                    begun.wait()
    return [event if event == "[DONE]" else json.loads(event) for event in events]


@contextmanager
def streams(server: ServerProcess, tokens: int, **headers: str) -> Iterator[list[Future[list[Any]]]]:
    """Run 16 streams, all begun."""
    begun = threading.Barrier(STREAMS + 1)
    with ThreadPoolExecutor(STREAMS) as pool:
        asked = [pool.submit(listen, server, tokens, begun, **headers) for _ in range(STREAMS)]
        begun.wait()
        yield asked


def until_unready(server: ServerProcess) -> None:
    while requests.get(server.url + "/ready", timeout=60).status_code == 200:
        pass


def test_streams_end_in_their_own_time(tmp_path: Path) -> None:
    with served(tmp_path) as server, streams(server, 300) as asked:
        server.signal(signal.SIGTERM)
        until_unready(server)
        assert requests.get(server.url + "/health", timeout=60).status_code == 503
        for path, payload in (pair.chat("What is 2 + 3?"), pair.generate(pair.prompts()[0])):
            refused = server.post(path, payload)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
            assert refused.headers["connection"] == "close"
            assert int(refused.headers["retry-after"]) >= 1
        for future in asked:
            *_, last, done = future.result()
            assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
        assert server.wait_ended() == 0
        assert "Traceback" not in server.log()


def test_at_the_deadline_streams_are_told(tmp_path: Path) -> None:
    with served(tmp_path, "--drain-timeout", "3") as server, streams(server, 480) as asked:
        server.signal(signal.SIGTERM)
        told = 0
        for future in asked:
            *_, last, done = future.result()
            assert done == "[DONE]"
            if "error" in last:
                told += last["error"]["code"] == "server_draining"
            else:
                assert last["choices"][0]["finish_reason"] == "length"
        assert told
        assert server.wait_ended() == 0
        assert "Traceback" not in server.log()


def test_keys_and_a_second_signal(tmp_path: Path) -> None:
    with served(tmp_path, "--api-key", KEY, "--admin-api-key", ADMIN) as server:
        check_keys(server)
        with streams(server, 480, Authorization=f"Bearer {KEY}") as asked:
            server.signal(signal.SIGTERM)
            until_unready(server)
            server.signal(signal.SIGINT)
            assert server.wait_ended() == 128 + signal.SIGINT
            # Cut off, as told: the second signal waits for nobody.
            assert any(future.exception() is not None for future in asked)


def check_keys(server: ServerProcess) -> None:
    """Ask every dangerous route and the API with no key, a wrong one, one that is not ASCII, and each of the two."""
    path, payload = pair.chat("What is 2 + 3?", max_tokens=2)
    wrong = [None, b"", b"Bearer", b"Bearer no", b"bearer  " + KEY.encode(), f"Bearer {KEY}\u00e9".encode("latin-1")]
    for given in wrong:
        headers = {} if given is None else {"Authorization": given}
        refused = requests.post(server.url + path, json=payload, headers=headers, timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key"), given
        assert refused.headers["x-request-id"]
    for key, status in ((KEY, 200), (ADMIN, 401)):
        answered = requests.post(
            server.url + path, json=payload, headers={"Authorization": f"Bearer {key}"}, timeout=60
        )
        assert answered.status_code == status
    for route in DANGEROUS:
        refused = requests.post(server.url + route, json={}, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key"), route
    told = requests.get(server.url + "/server_info", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    assert told.json()["admin_api_key"] == "(hidden)"
    assert ADMIN not in told.text
    assert ADMIN not in server.log()
    admin = {"Authorization": f"Bearer {ADMIN}"}
    assert requests.post(server.url + "/flush_cache", headers=admin, timeout=60).status_code == 200
    assert requests.get(server.url + "/health", timeout=60).status_code == 200
