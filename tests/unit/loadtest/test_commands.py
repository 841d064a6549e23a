"""The actions of the command, from their arguments to their files, against the mock server."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dspark_loadtest import command
from dspark_loadtest.checks import recovery
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.mock.script import Script
from dspark_loadtest.mock.server import MockServer
from dspark_loadtest.report.document import Document, Heading, Picture, Table, Warn
from dspark_loadtest.scenario import load_scenario
from tests.support.records import answered

ROOT = Path(__file__).parents[3]
FAST = Script(ttft_s=0.01, tpot_s=0.001, tokens_per_chunk=(1, 2), gamma=3)


def dspark_loadtest(*arguments: object) -> int:
    parser = argparse.ArgumentParser(prog="dspark loadtest", allow_abbrev=False)
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Make a second of requests, by the command itself."""
    file = tmp_path / "trace.jsonl"
    sizes = ("--prompt-tok", 30, "--output-tok", 8)
    assert dspark_loadtest("generate", file, "--rate", 20, "--duration", 1, *sizes) == 0
    return file


def test_a_replay_writes_everything_it_measured(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with MockServer(FAST) as server:
        status = dspark_loadtest("replay", "--url", server.url, "--trace", trace, "--out", out, "--quiet")
    assert status == 0
    data = json.loads((out / "summary.json").read_text())
    records = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    summary = data["summary"]
    assert summary["requests"]["ok"] == summary["requests"]["sent"] == len(records) > 5
    assert summary["completion_tokens"] == sum(record["completion_tokens"] for record in records)
    assert summary["reconciliation"]["completion"]["agrees"]
    assert data["schema"] == "dspark-loadtest-run/1"
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    # Self-contained: nothing is fetched from anywhere.
    assert page.count("<svg") == 2
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "![" in text
    assert "completion tokens" in text
    assert (out / "timeline.png").stat().st_size > 1000
    assert (out / "waiting.svg").stat().st_size > 1000


def test_a_run_without_an_answer_fails(trace: Path, tmp_path: Path) -> None:
    with MockServer(Script(fault="429", fault_every=1)) as server:
        arguments = (
            "--url",
            server.url,
            "--trace",
            trace,
            "--out",
            tmp_path,
            "--retries",
            0,
            "--quiet",
            "--warm-up",
            0,
        )
        assert dspark_loadtest("replay", *arguments) == 1
    assert "No request was answered." in (tmp_path / "report.md").read_text()


def test_nobody_at_the_url_is_one_sentence(trace: Path, tmp_path: Path) -> None:
    with MockServer(FAST) as server:
        url = server.url
    with pytest.raises(Exception, match="no server answers at"):
        dspark_loadtest("replay", "--url", url, "--trace", trace, "--out", tmp_path)


def test_a_sweep_draws_its_frontier_and_again_from_its_file(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "pareto"
    with MockServer(Script(ttft_s=0.01, tpot_s=0.004)) as plain, MockServer(FAST) as fast:
        urls = ("--url", f"plain={plain.url}", "--url", f"fast={fast.url}")
        load = ("--concurrency", "1,2", "--repeats", 2, "--requests", 4, "--waves", 2, "--anchors", "100000")
        assert dspark_loadtest("pareto", *urls, *load, "--trace", trace, "--out", out, "--quiet") == 0
    data = json.loads((out / "pareto.json").read_text())
    assert data["complete"]
    # plain, fast, fast, plain.
    assert [run["arm"] for run in data["runs"]] == ["plain"] * 2 + ["fast"] * 4 + ["plain"] * 2
    assert {run["load"] for run in data["runs"]} == {1, 2}
    assert data["summary"]["arms"]["fast"]["anchors"]["100000"]["output_tok_s"] is None
    text = (out / "pareto.md").read_text()
    assert "not measured" in text
    assert all((out / f"figure-{n}.{kind}").exists() for n in (7, 8) for kind in ("png", "svg"))
    again = tmp_path / "again"
    assert dspark_loadtest("report", out / "pareto.json", "--out", again) == 0
    assert (again / "pareto.html").read_text() == (out / "pareto.html").read_text()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(LoadtestError, match="is no dspark-loadtest-pareto/1"):
        dspark_loadtest("report", tmp_path / "other.json")


def _scenario(folder: Path, **expect: Any) -> Path:
    file = folder / "small.yaml"
    phases = [{"duration_s": 1, "of_capacity": 0.2}]
    lengths = {"prompt_tok": 20, "output_tok": 6, "prompt_spread": 0.1, "output_spread": 0.1}
    capacity = {"concurrency": 2, "waves": 3}
    file.write_text(
        json.dumps(
            {"says": "All is well.", "phases": phases, "lengths": lengths, "capacity": capacity, "expect": expect}
        )
    )
    return file


def test_a_scenario_holds_or_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _scenario(tmp_path, all_answered=True, tokens_agree=True, same_when_asked_alone=3, goodput_share=0.9)
    with MockServer(FAST) as server:
        assert dspark_loadtest("scenario", "--files", file, "--url", server.url, "--out", tmp_path, "--quiet") == 0
    checks = json.loads((tmp_path / "small" / "checks.json").read_text())["checks"]
    assert [one["name"] for one in checks] == [
        *("all answered", "tokens agree", "goodput", "same text when asked alone", "sent on time, p99"),
    ]
    assert checks[3]["found"] == "3 of 3"
    with MockServer(Script(ttft_s=0.01, tpot_s=0.001, fault="error", fault_every=3)) as server:
        assert dspark_loadtest("scenario", "--files", file, "--url", server.url, "--out", tmp_path, "--quiet") == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_a_server_that_counts_other_tokens_is_found_out(tmp_path: Path) -> None:
    class Forgetful(MockServer):
        async def _chat(self, request: Any) -> Any:
            self.generation_tokens += 1
            return await super()._chat(request)

    file = _scenario(tmp_path, tokens_agree=True)
    with Forgetful(FAST) as server:
        assert dspark_loadtest("scenario", "--files", file, "--url", server.url, "--out", tmp_path, "--quiet") == 1


@pytest.mark.parametrize("file", sorted((ROOT / "loadtest" / "scenarios").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_scenarios_that_ship_can_be_read(file: Path) -> None:
    scenario = load_scenario(file)
    assert scenario.says.endswith(".")
    assert scenario.expect.tokens_agree
    assert scenario.needs_capacity
    work = scenario.workload(4.0)
    assert len(work.trace) > 10
    begin, end = scenario.peak()
    assert 0 <= begin < end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("says: x\nphases: []\n", "phases: is not a list"),
        ("says: x\nphases: [{duration_s: 1}]\n", "one of rate_rps and of_capacity"),
        ("says: x\nphases: [{duration_s: 1, rate: 2}]\n", "phases.rate: is no field"),
        ("phases: [{duration_s: 1, rate_rps: 2}]\n", "missing 3 required"),
        ("says: x\nexpect: {all_well: true}\n", "expect.all_well: is no field"),
        ("says: x\nlengths: {prompt_tok: 0}\n", "prompt_tok: 0 is below 1"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused_by_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with pytest.raises(LoadtestError, match=message) as caught:
        load_scenario(file)
    assert str(file) in str(caught.value)


def test_recovery_is_when_waiting_stays_short_again() -> None:
    def waits(index: int, due: float, ttft: float) -> Any:
        return answered(index, due, [(due + ttft, 1)])

    calm = [waits(i, float(i), 0.1) for i in range(10)]
    after = [waits(20 + i, 11.0 + i, ttft) for i, ttft in enumerate((2.0, 1.0, 0.1, 0.5, 0.1, 0.1))]
    # The limit is 0.3 s; the last above it is due at 14, so that from 15 on, 4 s after the peak, all is well.
    assert recovery([*calm, *after], 10, 11, 3.0) == 4.0
    assert recovery([*calm, *after[-2:]], 10, 11, 3.0) == 0.0
    assert recovery([*calm, *after[:1]], 10, 11, 3.0) is None
    assert recovery(after, 10, 11, 3.0) is None


def test_a_document_is_the_same_in_both_forms_and_escapes_what_it_shows() -> None:
    document = Document("A <b>")
    document.add(
        Heading("H"), "x < y", Warn("careful"), Table(("a", "b"), [("p|q", "1")]), Picture("f.png", "cap", "<svg/>")
    )
    page, text = document.html(), document.markdown()
    assert "A &lt;b&gt;" in page
    assert "x &lt; y" in page
    assert "<svg/>" in page
    assert "| p\\|q | 1 |" in text
    assert "![cap](f.png)" in text
    assert "> **careful**" in text
