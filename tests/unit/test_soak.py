"""What a soak reads at quiet moments: every process of the server, and what of it grew."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ServerProcess
from tools.soak import MOST_GROWTH, growth, look

# A process that holds what each line of its input asks for: a byte is a mebibyte, a thread or a file.
HOLDER = """
import subprocess, sys, threading
title = sys.argv[1]
children = [subprocess.Popen([sys.executable, "-c", "input()", one], stdin=subprocess.PIPE) for one in sys.argv[2:]]
held, stop = [], threading.Event()
print("ready", flush=True)
for line in sys.stdin:
    for kind in line.strip():
        if kind == "m":
            held.append(b"x" * 2**20)
        elif kind == "f":
            held.append(open(sys.executable))
        else:
            threading.Thread(target=stop.wait, daemon=True).start()
    print("done", flush=True)
for child in children:
    child.communicate(b"end")
"""


class Held(ServerProcess):
    """The processes of a server without the server."""

    def __init__(self, folder: Path) -> None:
        super().__init__([], folder / "log")
        roles = ("sglang::scheduler", "sglang::detokenizer")
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, "serve", *roles], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.hears()

    def hears(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def hold(self, kinds: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(kinds.encode() + b"\n")
        self._process.stdin.flush()
        self.hears()

    def wait_until_idle(self, deadline_s: float = 60.0) -> dict[str, Any]:
        return {}

    def flush_cache(self) -> None: ...

    def load(self) -> dict[str, Any]:
        return {"num_used_tokens": 3}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path)
    yield held
    assert held._process is not None
    held._process.communicate()


def test_what_any_process_holds_is_seen(server: Held) -> None:
    first = look(server)
    assert first["slots"] == 3
    assert sorted(first["processes"]) == ["detokenizer", "http", "scheduler"]
    assert growth(first, look(server)) == []
    for kind, name in (("m", "memory_mib"), ("t", "threads"), ("f", "files")):
        before = look(server)
        server.hold(kind * (2 * MOST_GROWTH[name]))
        (found,) = growth(before, look(server))
        assert found.startswith(f"{name} of http grew from ")


def test_growth_within_its_bound_and_processes_that_come_and_go() -> None:
    read = {role: dict.fromkeys(MOST_GROWTH, 10.0) for role in ("http", "scheduler")}
    first, last = {"processes": read}, {"processes": copy.deepcopy(read)}
    for name, most in MOST_GROWTH.items():
        last["processes"]["http"][name] += most
        last["processes"]["scheduler"][name] -= most
    assert growth(first, last) == []
    last["processes"]["helper"] = last["processes"].pop("scheduler")
    assert growth(first, last) == ["process helper is in one look only", "process scheduler is in one look only"]
