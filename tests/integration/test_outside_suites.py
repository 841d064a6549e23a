"""Suites of others against a real server: a test passes, or tests/suites/expected.toml lists it with the cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support import suites
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair; at the end nothing may run or have failed inside."""
    pytest.importorskip("sglang")
    log = tmp_path_factory.mktemp("outside") / "log"
    with suites.suites_server(log).serving() as started:
        yield started


@pytest.mark.parametrize("name", suites.INSTALLED)
def test_suite_of_the_environment(name: str, server: ServerProcess, tmp_path: Path) -> None:
    check(name, server, tmp_path)


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("name", suites.FETCHED)
def test_fetched_suite(name: str, server: ServerProcess, tmp_path: Path) -> None:
    check(name, server, tmp_path)


@pytest.fixture(scope="module")
def fetched() -> Path:
    """Find what tools/get_suites.py fetches, or skip."""
    return suites.require()


def check(name: str, server: ServerProcess, work: Path) -> None:
    outcomes = suites.run_suite(name, server, work)
    wrong = list(suites.surprises(outcomes, suites.known(name)))
    assert not wrong, "\n".join(wrong)
    assert Counter(outcome.status for outcome in outcomes.values())["passed"] >= suites.LEAST_PASSED[name]


def test_the_fetched_client_is_the_one_that_sglang_installs() -> None:
    pins = [(suites.SUITES / name).read_text() for name in ("clients.txt", "sdist.txt")]
    assert all(f"\nopenai=={version('openai')} " in text for text in pins)
