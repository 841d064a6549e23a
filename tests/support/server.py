"""A real ``dspark serve`` in a process group of its own, and what a test asks of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import requests

Item = TypeVar("Item")
Result = TypeVar("Result")

# In the titles that SGLang gives its processes.
ROLES = (("sglang::sched", "scheduler"), ("sglang::detok", "detokenizer"))
START_S, STOP_S, REQUEST_S = 240.0, 60.0, 240.0
ROOT = Path(__file__).resolve().parents[2]


def serve_command(*arguments: str) -> list[str]:
    """Give the command line of ``dspark serve`` in this environment, installed as a script or not."""
    code = "import sys; from sgl_dspark.cli import main; sys.exit(main())"
    return [sys.executable, "-c", code, "serve", *arguments]


def server_environment(**changes: str) -> dict[str, str]:
    """Give an environment with one model thread, no access to a hub, and ``changes``."""
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **fixed, **changes}


def free_port() -> int:
    """Give a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def concurrently(function: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """Apply ``function`` to every item with at most ``workers`` at a time; results in the items' order."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


class ServerProcess:
    """One server: start it, ask it, read its log, stop it with every child.

    Parameters
    ----------
    arguments : sequence of str
        Of ``dspark serve``, without ``--port``.
    log_path : Path
        Receives standard output and error of all its processes.
    **environment : str
        Added to the environment.
    """

    def __init__(self, arguments: Sequence[str], log_path: Path, **environment: str) -> None:
        self.arguments = list(arguments)
        self.environment = server_environment(**environment)
        self.log_path = log_path
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers; on failure end it and raise with the end of its log."""
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                serve_command(*self.arguments, "--port", str(self.port)),
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server did not start:\n{self.log()[-4000:]}")
            # The polling interval: an early look costs nothing but processor time.
            time.sleep(0.25)

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/health", timeout=60).status_code == 200
        except (requests.ConnectionError, requests.Timeout):  # A busy machine is asked again until the deadline.
            return False

    @property
    def process(self) -> psutil.Process:
        """The command's own process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def processes(self) -> dict[str, psutil.Process]:
        """Find its processes by role: the command's own answers HTTP, and there are a scheduler and a detokenizer."""
        found = {"http": self.process}
        for child in self.process.children(recursive=True):
            title = " ".join(child.cmdline())
            role = next((role for mark, role in ROLES if mark in title), "helper")
            found[role if role not in found else f"{role} {child.pid}"] = child
        return found

    def scheduler(self) -> psutil.Process:
        """Find the process that holds the model."""
        return self.processes()["scheduler"]

    def log(self) -> str:
        """Read the log so far."""
        return self.log_path.read_text(errors="replace")

    @contextmanager
    def serving(self, *, failing: bool = False) -> Iterator[ServerProcess]:
        """Serve; at the end nothing may run, stay or have failed inside, but for what is made to fail and says so."""
        self.start()
        try:
            yield self
            self.wait_until_idle()
            assert self.stop() == 0
            assert ("Traceback" in self.log()) == failing
        finally:
            self.kill()

    def stop(self) -> int:
        """Send SIGTERM and return the exit status; raise if the command or any of its children stays."""
        assert self._process is not None
        family = [self.process, *self.process.children(recursive=True)]
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_S)
            _, left = psutil.wait_procs(family, timeout=STOP_S)
            left = [p for p in left if p.status() != psutil.STATUS_ZOMBIE]
            assert not left, f"left after SIGTERM: {left}"
        finally:
            self.kill()
        return status

    def signal(self, number: signal.Signals) -> None:
        """Send the command a signal and return at once."""
        self.process.send_signal(number)

    def wait_ended(self) -> int:
        """Wait until the command and all its children have ended, and return its exit status."""
        assert self._process is not None
        children = self.process.children(recursive=True)
        status = self._process.wait(STOP_S)
        _, left = psutil.wait_procs(children, timeout=STOP_S)
        assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE], left
        return status

    def kill(self) -> None:
        """End whatever is left of the process group."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def post(self, path: str, payload: dict[str, Any]) -> requests.Response:
        """Post a request as JSON and return the response, whatever its status."""
        return requests.post(self.url + path, json=payload, timeout=REQUEST_S)

    def ask(self, path: str, payload: dict[str, Any]) -> Any:
        """Post a request and return the JSON of a successful response."""
        response = self.post(path, payload)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path: str, payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Post a streamed request and yield its events; closing the generator closes the connection."""
        body = {**payload, "stream": True}
        with requests.post(self.url + path, json=body, stream=True, timeout=REQUEST_S) as response:
            assert response.status_code == 200, response.text
            for line in response.iter_lines(chunk_size=1):
                if line.startswith(b"data:") and line != b"data: [DONE]":
                    yield json.loads(line[5:])

    def load(self) -> dict[str, Any]:
        """Ask the scheduler for its load: running and waiting requests, used tokens."""
        (load,) = requests.get(f"{self.url}/v1/loads", timeout=60).json()["loads"]
        return dict(load)

    def wait_until_idle(self, deadline_s: float = 60.0) -> dict[str, Any]:
        """Poll until no request is running or waiting and return the load; raise at the deadline."""
        deadline = time.monotonic() + deadline_s
        while True:
            load = self.load()
            if load["num_running_reqs"] == load["num_waiting_reqs"] == 0:
                return load
            assert time.monotonic() < deadline, load
            time.sleep(0.1)

    def flush_cache(self) -> None:
        """Empty the prefix cache, which SGLang refuses to do while anything is running."""
        response = requests.post(f"{self.url}/flush_cache", timeout=60)
        assert response.status_code == 200, response.text
