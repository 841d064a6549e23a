"""Run a command and end whatever it left behind: ``contain.py COMMAND [ARGUMENT ...]``.

The process makes itself the parent of every orphan below it, so that servers and workers that moved into sessions of
their own are found as well. Exit status: the command's; the leftovers are named on standard error.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0


def main(command: list[str]) -> int:
    """Run the command, then end every process below this one."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        status = run_and_reap(command)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        end_descendants()
    return status if status >= 0 else 128 - status


def run_and_reap(command: list[str]) -> int:
    """Run the command; orphans that end meanwhile are reaped, since whoever waits for them is waiting for that."""
    process = subprocess.Popen(command)
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode


def interrupt(number: int, frame: object) -> None:
    """Turn a request to end into the exception that unwinds `main`."""
    raise KeyboardInterrupt


def end_descendants() -> None:
    """Terminate what is left, then kill what does not heed; the loop catches what is born meanwhile."""
    number, deadline = signal.SIGTERM, time.monotonic() + GRACE_S
    named: set[int] = set()
    while alive := descendants():
        for pid in alive:
            if pid not in named:
                print(f"contain: left behind: {pid} {command_line(pid)}", file=sys.stderr, flush=True)
                named.add(pid)
                send(pid, signal.SIGTERM)
            if number == signal.SIGKILL:
                send(pid, number)
        reap()
        time.sleep(0.1)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
    reap()


def descendants() -> list[int]:
    """Return the live processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_fields(entry)) and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, pending = [], [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def stat_fields(entry: Path) -> list[str]:
    """Return state, parent and so on of a process; nothing if it has just ended."""
    try:
        # The name is in parentheses and may hold anything, so count from the last one.
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command_line(pid: int) -> str:
    """Return the command line of a process, shortened."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "(ended)"


def send(pid: int, number: int) -> None:
    """Signal a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def reap() -> None:
    """Collect ended children, orphans included."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: contain.py COMMAND [ARGUMENT ...]")
    sys.exit(main(sys.argv[1:]))
