"""The arms of a measurement: servers that it starts and ends itself, or that run already at a URL."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from sgl_dspark.errors import DsparkError, LaunchError

HOST = "127.0.0.1"
# Name of the arm without speculation.
PLAIN = "plain"
_TAIL_LINES = 12
_GRACE_S = 15.0
_KILL_S = 10.0


class Arm(Protocol):
    """One side of the comparison.

    Attributes
    ----------
    name : str
    ours : bool
        Started by the benchmark, so that its prefix cache may be emptied.
    """

    @property
    def name(self) -> str:
        """Label in tables."""
        ...

    @property
    def ours(self) -> bool:
        """Whether the benchmark starts and ends it."""
        ...

    def open(self) -> contextlib.AbstractContextManager[str]:
        """Make the server answer; yields its base URL and ends it afterwards."""
        ...


@dataclass(frozen=True)
class UrlArm:
    """A server that runs already and is left as it is."""

    name: str
    url: str
    ours: bool = False

    @contextlib.contextmanager
    def open(self) -> Iterator[str]:
        """Yield the URL once ``/health`` or ``/v1/models`` answers; raise `LaunchError` if neither does."""
        if not (healthy(self.url) or healthy(self.url, "/v1/models")):
            raise LaunchError(f"no server answers at {self.url} ({self.name}); start it first or correct --url")
        yield self.url


@dataclass
class ServerArm:
    """A server that is started for each turn and ended after it.

    Attributes
    ----------
    name : str
    command : sequence of str
        Starts the server; ``--host`` and ``--port`` are added.
    log_folder : Path
        Each start writes a log there.
    cores : frozenset of int, or None
        Where it runs.
    environment : dict
        Added to ours.
    startup_s : float
        Longest wait until it is ready.
    poll_s : float
        Interval between looks at a server that is loading.
    """

    name: str
    command: Sequence[str]
    log_folder: Path
    cores: frozenset[int] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    startup_s: float = 900.0
    poll_s: float = 0.5
    ours: bool = True
    starts: int = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[str]:
        """Start it, yield its URL when it is ready, end it and every process of it.

        Raises
        ------
        LaunchError
            If it ends by itself, before or while it is used: status, log file and the log's last lines. If it is not
            ready in time. If a process of it cannot be ended.
        """
        port = free_port()
        url = f"http://{HOST}:{port}"
        self.starts += 1
        log = self.log_folder / f"{self.name}-{self.starts}.log"
        process = self._start(port, log)
        try:
            try:
                self._wait_until_ready(process, url, log)
                yield url
            except DsparkError as error:
                self._explain_death(process, log, error)
                raise
        finally:
            end_processes(process)

    def _start(self, port: int, log: Path) -> subprocess.Popen[bytes]:
        command = [*self.command, "--host", HOST, "--port", str(port)]
        # The group is its own, so that Ctrl-C reaches us alone and the whole group can be signalled.
        with log.open("wb") as output, on_cores(self.cores):
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def _wait_until_ready(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        deadline = time.monotonic() + self.startup_s
        while not healthy(url):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.poll_s)
                raise LaunchError(f"the {self.name} server ended before it was ready")
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"the {self.name} server was not ready after {self.startup_s:.0f} s; raise --startup-timeout or "
                    f"look at its log, {log}, which ends:\n{log_tail(log)}"
                )

    def _explain_death(self, process: subprocess.Popen[bytes], log: Path, error: DsparkError) -> None:
        # Its workers go first; the process that we started follows within moments.
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(5)
            how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
            raise LaunchError(
                f"the {self.name} server ended by itself {how}; its log is {log} and ends:\n{log_tail(log)}"
            ) from error


@contextlib.contextmanager
def on_cores(cores: frozenset[int] | None) -> Iterator[None]:
    """Run the calling thread, and processes that it starts meanwhile, on ``cores``; None leaves it as it is."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def healthy(url: str, path: str = "/health") -> bool:
    """Whether a GET answers 200 within a few seconds."""
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=10) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def log_tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log that are not empty, indented."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"  (cannot be read: {error})"
    kept = [line for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(f"  {line}" for line in kept) or "  (it is empty)"


def end_processes(leader: subprocess.Popen[bytes]) -> None:
    """End a server, its process group and its descendants; a further Ctrl-C meanwhile changes nothing.

    The leader is asked first (SIGTERM), so that it ends its workers in order; whatever of the group or of the
    descendants is left after a grace period is killed.

    Raises
    ------
    LaunchError
        If a process survives even that; names its id.
    """
    with _undisturbed():
        family = _family(leader.pid)
        with contextlib.suppress(ProcessLookupError):
            leader.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            leader.wait(_GRACE_S)
        # Again, because processes may have been started since.
        family |= _family(leader.pid)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(family, timeout=_KILL_S)
        leader.poll()
        left = sorted(p.pid for p in {*alive, *_family(leader.pid)} if _runs(p))
    if left:
        raise LaunchError(f"process {left[0]} of the server could not be ended; end it before measuring again")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _family(leader: int) -> set[psutil.Process]:
    """Find the processes of the leader's group, which outlives it, and its descendants."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if process.pid == leader or os.getpgid(process.pid) == leader:
                found |= {process, *process.children(recursive=True)}
    return found


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
