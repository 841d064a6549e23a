"""SIGTERM before the server serves, also as process 1, where the kernel drops signals that have no handler."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

WAIT_S = 60.0
# Has a child that would stay, says so, and ends with status 7 when it is told to.
PROGRAM = """
import subprocess, sys
from dspark_sglang.startup_signal import end_on_sigterm
if {handler}:
    end_on_sigterm()
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
sys.stdin.readline()
sys.exit(7)
"""
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def program(*, handler: bool = True) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(handler=handler)]


def as_process_one(command: list[str]) -> list[str]:
    words = ["unshare", "--pid", "--fork", "--kill-child", *command]
    if shutil.which("unshare") is None or subprocess.run([*words[:4], "true"], capture_output=True).returncode != 0:
        pytest.skip("process numbers of its own are not permitted here")
    return words


def test_everything_ends_with_status_0() -> None:
    with subprocess.Popen(program(), **PIPES) as process:
        child = psutil.Process(int(process.stdout.readline()))
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def ended_by_sigterm(command: list[str], *, heard: bool = True) -> int:
    """Start a command as process 1, send it SIGTERM, tell it to end unless that is ``heard``; return its status."""
    with subprocess.Popen(as_process_one(command), **PIPES) as process:
        process.stdout.readline()
        (first,) = psutil.Process(process.pid).children()
        first.send_signal(signal.SIGTERM)
        if not heard:
            process.stdin.write("\n")
            process.stdin.flush()
        return process.wait(WAIT_S)


def test_process_1_hears_it() -> None:
    assert ended_by_sigterm(program()) == 0


def test_process_1_without_a_handler_would_not() -> None:
    """What the handler is for: the signal is dropped, and the program ends of itself."""
    assert ended_by_sigterm(program(handler=False), heard=False) == 7


def test_a_fork_ends_itself_only() -> None:
    from dspark_sglang.startup_signal import end_on_sigterm

    before = signal.getsignal(signal.SIGTERM)
    end_on_sigterm()
    try:
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
