"""What a new user gets wrong is answered at once, with one sentence and status 2, before anything is loaded."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pair
from tests.support.server import ROOT, serve_command, server_environment

GOLDEN = ROOT / "tests" / "golden" / "qwen3_vanilla"
DRAFT = "--speculative-draft-model-path"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def complaint(*arguments: str) -> str:
    """Run ``dspark serve``, which must end with status 2 and one line on standard error; return the sentence."""
    done = subprocess.run(
        serve_command(*arguments), env=server_environment(), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_wrong_model_path() -> None:
    assert "there is no model at /no/such/model; check --model-path" in complaint(
        "--model-path", "/no/such/model", DRAFT, str(pair.DRAFT)
    )


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "not a model folder" in complaint("--model-path", str(tmp_path), DRAFT, str(pair.DRAFT))


def test_a_wrong_draft_path() -> None:
    assert "there is no draft at ./none" in complaint("--model-path", str(pair.TARGET), DRAFT, "./none")


def test_a_draft_for_another_target() -> None:
    line = complaint("--model-path", str(pair.TARGET), DRAFT, str(GOLDEN / "draft"))
    assert "was made for another target (hidden size 32, but this target has 128)" in line
    assert line.count("; ") == 1


def test_a_target_without_a_draft() -> None:
    assert "no draft for this target" in complaint("--model-path", str(pair.TARGET))


def test_a_busy_port(taken_port: int) -> None:
    line = complaint("--model-path", str(pair.TARGET), DRAFT, str(pair.DRAFT), "--port", str(taken_port))
    assert f"port {taken_port} on 127.0.0.1 is in use" in line
