"""One server at a time: the plain arm answers everything first and stops, then the DSpark arm serves all tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import arms, pair
from tests.support.server import ServerProcess


@dataclass(frozen=True)
class PlainAnswers:
    """What the target alone answered, by name of the request (see `tests.support.arms`)."""

    greedy: dict[str, Any]
    stopping: dict[str, Any]
    lengths: dict[str, Any]
    logprobs: dict[str, Any]
    burst: dict[str, Any]
    adjusted: dict[str, Any]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> PlainAnswers:
    """Serve the target alone, ask it everything, stop it."""
    pytest.importorskip("sglang")
    adjusted = _adjusted_answers(tmp_path_factory)
    log = tmp_path_factory.mktemp("plain") / "log"
    server = ServerProcess(["--plain", *pair.SERVER_FLAGS], log, **pair.SERVER_ENVIRONMENT)
    server.start()
    try:
        greedy = arms.answer_all(server, arms.greedy_requests())
        answers = PlainAnswers(
            greedy,
            arms.answer_all(server, arms.stopping_requests(greedy)),
            arms.answer_all(server, arms.length_requests()),
            arms.answer_all(server, arms.logprob_requests()),
            arms.answer_all(server, arms.burst_requests(), arms.BURST),
            adjusted,
        )
        assert "spec_verify_ct" not in greedy["prompt 0"]["meta_info"]
        server.stop()
    finally:
        server.kill()
    return answers


def _adjusted_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    log = tmp_path_factory.mktemp("plain-exact") / "log"
    server = ServerProcess(["--plain", "--disable-overlap-schedule", *pair.SERVER_FLAGS], log)
    server.start()
    try:
        requests = arms.adjusted_requests()
        answers = arms.answer_all(
            server, {n: r for n, r in requests.items() if not arms.is_only_penalised(n.rsplit(" ", 1)[0])}
        )
        server.stop()
    finally:
        server.kill()
    return answers


@pytest.fixture(scope="session")
def dspark(plain: PlainAnswers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair; at the end nothing may run, leak, have failed in the log, or survive SIGTERM."""
    folder = tmp_path_factory.mktemp("dspark")
    profile = ["--step-time-profile", str(folder / "step-times.json")]
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), *profile]
    server = ServerProcess(flags, folder / "log", **pair.SERVER_ENVIRONMENT)
    server.start()
    try:
        yield server
        server.wait_until_idle()
        server.flush_cache()
        assert server.stop() == 0
        log = server.log()
        assert "DSpark worker active" in log
        for word in ("Traceback", "memory leak", "Exception"):
            assert word not in log, log[log.index(word) - 2000 :][:4000]
    finally:
        server.kill()
