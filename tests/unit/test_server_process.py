"""Servers as processes: ready, dead, too slow, and gone afterwards with everything that they started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from sgl_dspark.errors import LaunchError
from sgl_dspark.server_process import ServerArm, UrlArm, healthy, log_tail, on_cores
from tests.support import fake_server_process
from tests.support.fake_chat_server import FakeChatServer

SCRIPT = str(Path(fake_server_process.__file__))
HANGS = "import signal; print('loading', flush=True); signal.pause()"
DIES = "import sys; print('first line'); print(); sys.exit('no such weights')"


def _arm(folder: Path, *command: str, **options: object) -> ServerArm:
    return ServerArm("dspark", [sys.executable, *command], folder, poll_s=0.01, **options)  # type: ignore[arg-type]


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_server_answers_and_leaves_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    core = frozenset([min(os.sched_getaffinity(0))])
    arm = _arm(tmp_path, SCRIPT, str(pids), cores=core, environment={"OMP_NUM_THREADS": "3"})
    with arm.open() as url:
        assert healthy(url)
        parent, child = map(int, pids.read_text().split())
        assert _alive(parent)
        assert _alive(child)
        assert os.getpgid(child) == parent != os.getpgid(0)
    assert not _alive(parent)
    assert not _alive(child)
    assert log_tail(tmp_path / "dspark-1.log").startswith(f"  cores {sorted(core)} threads 3")


def test_cores_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the system says is scripted: another process may pin this one at any time.
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: asked.append(set(cores)))
    with pytest.raises(LaunchError), on_cores(frozenset([5])):
        raise LaunchError("inside")
    with on_cores(None):
        pass
    assert asked == [{5}, {4, 5}]


def test_a_child_that_outlives_its_server_is_ended_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def lose_the_leader() -> None:
        with _arm(tmp_path, SCRIPT, str(pids)).open():
            os.kill(int(pids.read_text().split()[0]), signal.SIGKILL)
            raise LaunchError("the connection failed")

    with pytest.raises(LaunchError, match="ended by itself by SIGKILL; its log is .*dspark-1.log and ends:"):
        lose_the_leader()
    assert not any(_alive(int(pid)) for pid in pids.read_text().split())


def test_a_failed_request_of_a_living_server_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerArm, "_explain_death", lambda *_: None)
    with (
        pytest.raises(LaunchError, match="^answered 400$"),
        _arm(tmp_path, SCRIPT, str(tmp_path / "pids")).open(),
    ):
        raise LaunchError("answered 400")


def test_a_server_that_dies_while_it_loads_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught, _arm(tmp_path, "-c", DIES).open():
        pass
    message = str(caught.value)
    assert message.startswith("the dspark server ended by itself with status 1; its log is ")
    assert message.endswith("dspark-1.log and ends:\n  first line\n  no such weights")


def test_a_server_that_is_not_ready_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = ServerArm._start

    def remember(*arguments: object) -> object:
        started.append(start(*arguments))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(ServerArm, "_start", remember)
    monkeypatch.setattr(ServerArm, "_explain_death", lambda *_: None)
    with (
        pytest.raises(LaunchError, match="was not ready after 0 s; raise --startup-timeout"),
        _arm(tmp_path, "-c", HANGS, startup_s=0.0).open(),
    ):
        pass
    assert not _alive(started[0].pid)


def test_every_start_has_its_own_log(tmp_path: Path) -> None:
    arm = _arm(tmp_path, SCRIPT, str(tmp_path / "pids"))
    for _ in range(2):
        with arm.open():
            pass
    assert sorted(p.name for p in tmp_path.glob("*.log")) == ["dspark-1.log", "dspark-2.log"]


def test_a_server_at_a_url_is_left_as_it_is() -> None:
    with FakeChatServer() as server:
        for _ in range(2):
            with UrlArm("mine", server.url).open() as url:
                assert url == server.url
    with pytest.raises(LaunchError, match="no server answers at .* \\(mine\\)"), UrlArm("mine", server.url).open():
        pass


def test_the_tail_of_a_log_that_is_missing_or_empty(tmp_path: Path) -> None:
    assert "cannot be read" in log_tail(tmp_path / "none")
    (tmp_path / "empty").write_text("\n\n")
    assert log_tail(tmp_path / "empty") == "  (it is empty)"
    (tmp_path / "long").write_text("\n".join(map(str, range(50))))
    assert log_tail(tmp_path / "long", 2) == "  48\n  49"
