"""The image's entrypoint: what it hands to dspark, and that no mistake with keys starts a server without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deploy import DEPLOY

DOCKER = DEPLOY / "docker"


@pytest.fixture
def start(tmp_path: Path):
    """Start the entrypoint, without root's rights, with a dspark that tells its arguments, threads and process."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "dspark"
    program.write_text('#!/bin/sh\necho "$$" "${OMP_NUM_THREADS-unset}"\nfor a in "$@"; do echo "<$a>"; done\n')
    program.chmod(0o755)
    (tmp_path / "keys").mkdir()

    def run(*arguments: str, **variables: str) -> tuple[int, int, str, str]:
        settings = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **variables}
        # A container's user has no right to pass over permissions.
        mortal = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        command = [*mortal, "sh", str(DOCKER / "entrypoint.sh"), *arguments]
        process = subprocess.Popen(
            command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        output, problems = process.communicate(timeout=60)
        return process.pid, process.returncode, output, problems

    return run


@pytest.fixture
def entrypoint(start):
    """Run the entrypoint to its end, and return the threads and arguments of dspark."""

    def run(*arguments: str, **variables: str) -> tuple[str, list[str]]:
        started, status, output, problems = start(*arguments, **variables)
        assert status == 0, problems
        first, *words = output.splitlines()
        pid, threads = first.split()
        assert int(pid) == started, "dspark must take the place of the shell, which would keep SIGTERM to itself"
        return threads, [word[1:-1] for word in words]

    return run


def test_entrypoint_hands_on(entrypoint) -> None:
    assert entrypoint("serve", "--a", "b c") == ("unset", ["serve", "--a", "b c"])
    assert entrypoint("doctor", OMP_NUM_THREADS="3") == ("3", ["doctor"])


@pytest.mark.parametrize(("given", "threads"), [("", "unset"), ("2", "2")])
def test_an_empty_number_of_threads_is_none(given, threads, entrypoint) -> None:
    """Compose hands an unset variable on as an empty one, which dspark would take for a mistake."""
    found, _ = entrypoint("serve", OMP_NUM_THREADS=given)
    assert found == threads


def test_keys_and_calibration_are_found(entrypoint, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    (keys / "api-key").write_text("secret\n")
    named = {"SGL_DSPARK_KEYS": str(keys), "SGL_DSPARK_STATE": str(tmp_path / "state" / "deep")}
    flag = f"--api-key-file={keys}/api-key"
    assert entrypoint("serve", **named)[1] == ["serve", flag]
    (tmp_path / "state" / "deep" / "calibration.json").write_text("{}")
    found = ["--calibration", f"{tmp_path}/state/deep/calibration.json"]
    assert entrypoint("serve", **named)[1] == ["serve", *found, flag]
    for flags in (["--plain"], ["--calibration=off"], ["--calibration", "off"]):
        assert entrypoint("serve", *flags, **named)[1] == ["serve", *flags, flag]
    (keys / "admin-api-key").symlink_to("..data/admin-api-key")
    # Others may be in a shared secret.
    (keys / "hub-token").write_text("b")
    both = ["serve", "--plain", flag, f"--admin-api-key-file={keys}/admin-api-key"]
    assert entrypoint("serve", "--plain", **named)[1] == both


def test_keys_are_on_no_command_line(entrypoint, tmp_path: Path) -> None:
    (tmp_path / "keys" / "api-key").write_text("hush")
    _, words = entrypoint("serve", SGL_DSPARK_KEYS=str(tmp_path / "keys"))
    assert "hush" not in " ".join(words)


def lock(path: Path) -> None:
    path.chmod(0)


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (lambda keys: None, "holds neither api-key nor admin-api-key"),
        (lambda keys: keys.rmdir(), "holds neither"),
        (lambda keys: (keys / ".gitignore").touch(), "holds neither"),
        (lambda keys: (keys / "apiKey").write_text("a"), "apiKey is no key; call the file api-key or"),
        (lambda keys: [(keys / n).write_text("a") for n in ("admin-api-key", "api_key")], "api_key is no key"),
        (lambda keys: lock(keys), "cannot look into the folder of keys"),
        (lambda keys: keys.chmod(0o600), "cannot look into the folder of keys"),
        (lambda keys: [keys.rmdir(), keys.write_text("a")], "is no folder"),
    ],
)
def test_keys_that_cannot_be_used_start_nothing(mistake, expected: str, start, tmp_path: Path) -> None:
    """Without its key a server is open to whoever reaches it."""
    keys = tmp_path / "keys"
    mistake(keys)
    try:
        _, status, output, problems = start("serve", SGL_DSPARK_KEYS=str(keys))
    finally:
        if keys.exists():
            keys.chmod(0o700)
    assert (status, output) == (1, "")
    assert expected in problems


@pytest.mark.parametrize("name", ["api-key", "admin-api-key"])
@pytest.mark.parametrize("content", ["", "secret"])
def test_a_key_that_is_empty_or_unreadable_starts_nothing(name: str, content: str, start, tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    (tmp_path / "keys" / name).write_text(content)
    if content:
        lock(tmp_path / "keys" / name)
    code = "import sys; from sgl_dspark.cli import main; sys.exit(main())"
    (tmp_path / "bin" / "dspark").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    path = ":".join(sys.path)
    _, status, _, problems = start("serve", "--port=1", SGL_DSPARK_KEYS=str(tmp_path / "keys"), PYTHONPATH=path)
    assert status == 2
    assert f"{name}-file: {tmp_path}/keys/{name} {'cannot be read' if content else 'is empty'}" in problems
