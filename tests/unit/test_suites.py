"""Outside suites: what their reports say, what is a surprise, and where they are fetched to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import suites
from tests.support.suites import Known, Outcome, surprises
from tools import get_suites

PYTEST = """<testsuites><testsuite>
<testcase classname="tests.api_resources.chat.test_completions.TestCompletions" name="test_list[loose]">
<failure message="Error code: 405">where</failure></testcase>
<testcase classname="tests.api_resources.test_models.TestModels" name="test_list[loose]"/>
<testcase classname="" name="test_alone"><skipped message="no audio"/></testcase>
<testcase classname="a" name="test_setup"><error message="no fixture"/></testcase>
</testsuite></testsuites>"""
NODE = '<testsuites><testcase name="ai: text" classname="test"/></testsuites>'
LISTED = [
    Known(("*::test_list*",), "405", "it lists nothing"),
    Known(("test_alone",), "audio", "text only", "skipped"),
]


def read(tmp_path: Path, text: str) -> dict[str, Outcome]:
    report = tmp_path / "report"
    report.write_text(text)
    return suites.read_junit(report)


def test_reports(tmp_path: Path) -> None:
    assert read(tmp_path, PYTEST) == {
        "chat.test_completions.TestCompletions::test_list[loose]": Outcome("failed", "Error code: 405\nwhere"),
        "test_models.TestModels::test_list[loose]": Outcome("passed", ""),
        "test_alone": Outcome("skipped", "no audio"),
        "a::test_setup": Outcome("failed", "no fixture"),
    }
    assert read(tmp_path, NODE) == {"ai: text": Outcome("passed", "")}
    with pytest.raises(ValueError, match="has no tests"):
        read(tmp_path, "<testsuites/>")
    (tmp_path / "report").write_text(
        json.dumps({"results": [{"id": "chat", "status": "failed", "errors": ["HTTP 400"]}]})
    )
    assert suites.read_comply(tmp_path / "report") == {"chat": Outcome("failed", "['HTTP 400']")}


def test_what_is_listed_is_no_surprise() -> None:
    outcomes = {"a::test_list": Outcome("failed", "Error code: 405"), "test_alone": Outcome("skipped", "no audio")}
    assert not list(surprises({**outcomes, "other": Outcome("passed", "")}, LISTED))


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [
        ("other", Outcome("failed", "Error code: 500"), "failed, which is not listed: Error code: 500"),
        ("other", Outcome("skipped", "no audio"), "skipped, which is not listed"),
        ("b::test_list", Outcome("passed", ""), "passed, and is listed as failed"),
        ("b::test_list", Outcome("failed", "Error code: 500"), "for another reason than listed"),
        ("test_alone", Outcome("failed", "audio"), "failed, and is listed as skipped"),
    ],
)
def test_surprises(name: str, outcome: Outcome, said: str) -> None:
    usual = {"a::test_list": Outcome("failed", "405"), "test_alone": Outcome("skipped", "audio")}
    (line,) = surprises({**usual, name: outcome}, LISTED)
    assert line.startswith(f"{name}: ")
    assert said in line


def test_a_listed_test_that_is_gone_is_a_surprise() -> None:
    assert list(surprises({"a::test_list": Outcome("failed", "405")}, LISTED)) == [
        "test_alone: listed, but there is no such test"
    ]


@pytest.mark.parametrize("name", suites.NAMES)
def test_what_is_known_has_a_cause_and_a_message(name: str) -> None:
    entries = suites.known(name, plain=True)
    assert all(entry.cause and entry.message and entry.tests for entry in entries)
    assert suites.known(name) == [entry for entry in entries if not entry.only_plain]


def test_the_folder_follows_the_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pins = tmp_path / "pins"
    (pins / "npm").mkdir(parents=True)
    for name in get_suites.LISTS:
        (pins / name).write_text(name)
    monkeypatch.setattr(get_suites, "PINS", pins)
    before = get_suites.suites_folder()
    assert before.parent == tmp_path / "cache" / "sgl-dspark"
    assert get_suites.suites_folder() == before
    (pins / "npm" / "package-lock.json").write_text("newer")
    assert get_suites.suites_folder() != before


def test_a_fetched_node_serves_where_the_machines_is_missing_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(folder: str, version: str) -> Path:
        (tmp_path / folder).mkdir(parents=True)
        for name in ("node", "npm"):
            program = tmp_path / folder / name
            program.write_text(f"#!/bin/sh\necho v{version}\n")
            program.chmod(0o755)
        return tmp_path / folder

    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert get_suites.node_folder(tmp_path) is None
    old, fetched = place("old", "18.19.0"), place("venv/bin", "24.19.0")
    monkeypatch.setenv("PATH", str(old))
    assert get_suites.node_folder(tmp_path) == fetched
    new = place("new", "20.1.0")
    monkeypatch.setenv("PATH", str(new))
    assert get_suites.node_folder(tmp_path) == new


def test_without_the_suites_a_test_skips_and_ci_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CI_SUITES", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"tools/get_suites\.py fetches them"):
        suites.require()
    monkeypatch.setenv("CI_SUITES", "1")
    with pytest.raises(pytest.fail.Exception, match="the outside suites are not in"):
        suites.require()
