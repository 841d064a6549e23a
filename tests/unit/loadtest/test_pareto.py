"""A sweep's report: broken runs are no points, and what the comparison does not hold equal is said."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dspark_loadtest import command
from dspark_loadtest.commands import pareto as action
from dspark_loadtest.endpoint import Endpoint
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.mock.script import Script
from dspark_loadtest.mock.server import MockServer
from dspark_loadtest.pareto import summarise_sweep
from dspark_loadtest.report.pareto import make_document
from dspark_loadtest.session import Workload
from dspark_loadtest.sweep import Sweep
from dspark_loadtest.traces.request import Trace, TraceRequest
from sgl_dspark.errors import ConfigError
from sgl_dspark.server_process import ServerArm
from tests.support.records import run_of

FAST = Script(ttft_s=0.01, tpot_s=0.002, tokens_per_chunk=(1, 2), gamma=3)
BROKEN = Script(ttft_s=0.01, tpot_s=0.002, fault="error", fault_every=2)


def parsed(*arguments: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dspark loadtest", allow_abbrev=False)
    command.add_arguments(parser)
    return parser.parse_args([str(argument) for argument in arguments])


def sweep(out: Path, script: Script, *more: object) -> tuple[int, dict[str, Any], str]:
    """Measure two mock servers; return the exit status, ``pareto.json`` and ``pareto.md``."""
    with MockServer(FAST) as plain, MockServer(script) as other:
        urls = ("--url", f"plain={plain.url}", "--url", f"other={other.url}", "--anchors", 200, "--out", out)
        load = ("--concurrency", "1,2", "--repeats", 1, "--requests", 4, "--waves", 2, "--max-output", 8, "--quiet")
        status = command.run(parsed("pareto", *urls, *load, *more))
    return status, json.loads((out / "pareto.json").read_text()), (out / "pareto.md").read_text()


def test_broken_runs_are_no_points(tmp_path: Path) -> None:
    status, data, text = sweep(tmp_path, BROKEN)
    assert status == 1
    arm = data["summary"]["arms"]["other"]
    assert [(point["excluded"], point["repeats"], point["tok_s_user"]) for point in arm["points"]] == [(1, 0, None)] * 2
    assert all(point["failed"] >= 2 for point in arm["points"])
    assert arm["frontier"] == []
    assert arm["anchors"]["200"]["output_tok_s"] is None
    assert arm["against_baseline"]["between"] is None
    assert all(row["output_tok_s"] is None for row in arm["against_baseline"]["at_equal_load"])
    assert "requests failed" in text
    assert len(data["summary"]["arms"]["plain"]["frontier"]) >= 1


def test_one_broken_repeat_leaves_the_others() -> None:
    runs = [run_of(r, "plain", load, 40 / load, 40 + 10 * load) for r in range(2) for load in (1, 2)]
    broken = run_of(2, "plain", 1, 4000.0, 9000.0)
    broken.measured.update(problems=["3 of 6 requests failed"], requests={"failed": 3})
    found = summarise_sweep([*runs, broken], [30.0], baseline="plain")
    point = found["arms"]["plain"]["points"][0]
    assert (point["repeats"], point["excluded"], point["failed"]) == (2, 1, 3)
    assert point["output_tok_s"] == {"median": 50, "low": 50, "high": 50}
    assert found["arms"]["plain"]["anchors"]["30"]["repeats"] == 2
    assert found["problems"] == ["plain, load 1: 3 of 6 requests failed"]


def test_a_report_says_how_answers_ended_and_what_was_asked(tmp_path: Path) -> None:
    fit = ("--prompt-scale", 0.15, "--output-scale", 0.3)
    status, data, text = sweep(tmp_path / "forced", FAST, *fit)
    assert status == 0
    assert data["request"]["ignore_eos"] is True
    assert "Every answer is forced to the length that the trace says (ignore_eos)" in text
    assert "Temperature 0, greedy." in text
    assert "prompts times 0.15 and answers times 0.3, answers at most 8 tokens" in text
    assert "Prompts (built in): " in text
    assert "the prefix cache was emptied before every run; cores: not pinned (the servers run already)" in text
    assert "Each load asks the beginning of the same trace" in text
    assert "The number of repeats is odd" in text
    assert all(run["client_cpu_share"] > 0 for run in data["runs"])
    assert "client's share of a core" in text
    more = ("--natural-stop", "--temperature", 0.7, "--no-flush", "--mix", "maths=1")
    _, data, text = sweep(tmp_path / "natural", FAST, *more)
    assert data["request"]["ignore_eos"] is False
    assert "Answers end by themselves" in text
    assert "forced" not in text
    assert "Temperature 0.7." in text
    assert "maths 100 %" in text
    assert "the prefix cache was emptied before 0 of 4 runs" in text


def test_policies_on_one_server_are_said_to_share_what_it_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "was learnt from the runs of the other policies too"
    _, data, text = sweep(tmp_path / "servers", FAST)
    assert data["policies"] == []
    assert said not in text
    chosen: list[dict[str, Any]] = []
    monkeypatch.setattr(Endpoint, "set_policy", lambda _, body: chosen.append(body))
    with MockServer(FAST) as dspark:
        load = ("--concurrency", "1", "--repeats", 2, "--requests", 2, "--waves", 1, "--max-output", 8, "--quiet")
        arms = ("--arms", "static:2,adaptive", "--url", f"dspark={dspark.url}", "--out", tmp_path)
        assert command.run(parsed("pareto", *arms, *load)) == 0
    data = json.loads((tmp_path / "pareto.json").read_text())
    assert [body["policy"] for body in chosen] == ["static", "adaptive", "adaptive", "static"]
    assert data["policies"] == ["static:2", "adaptive"]
    assert said in (tmp_path / "pareto.md").read_text()


def test_a_file_of_before_says_less_and_is_drawn_again_all_the_same(tmp_path: Path) -> None:
    _, data, _ = sweep(tmp_path, FAST)
    known = {name: data[name] for name in data if name not in ("policies", "pinning", "mix", "prompts", "categories")}
    known["runs"] = [{key: run[key] for key in run if key != "prefix_cache"} for run in data["runs"]]
    older = make_document(known, []).markdown()
    assert "whether the prefix cache was emptied is not recorded; cores: not recorded" in older


def test_servers_and_client_have_cores_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    args = parsed("pareto", "--arms", "plain,adaptive", "--out", tmp_path)
    cores = action.plan_pinning(args)
    assert str(cores) == "server on core 0, client on core 1"
    arms = action.make_arms(args, cores)
    assert [isinstance(arm, ServerArm) and arm.cores for arm in arms] == [frozenset([0])] * 2
    assert action.plan_pinning(parsed("pareto", "--pin", "1:0")).server == frozenset([1])
    assert action.plan_pinning(parsed("pareto", "--pin", "none")).client is None
    with pytest.raises(ConfigError, match="core 7 is not usable"):
        action.plan_pinning(parsed("pareto", "--pin", "7:0"))


def test_the_client_keeps_to_its_core_while_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = os.sched_getaffinity(0)
    core = min(usable)
    seen: list[set[int]] = []
    original = action.run_sweep

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return original(*arguments, **options)

    monkeypatch.setattr(action, "run_sweep", watched)
    _, data, text = sweep(tmp_path, FAST, "--pin", f"{core}:{core}")
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == usable
    assert data["pinning"] == f"server on core {core}, client on core {core}"
    assert data["pinning"] in text


def test_two_servers_of_one_name_are_refused(tmp_path: Path) -> None:
    args = parsed("pareto", "--url", "a=http://x", "--url", "a=http://y", "--out", tmp_path)
    with pytest.raises(LoadtestError, match="names 'a' twice"):
        action.make_arms(args, action.plan_pinning(args))


def test_every_server_has_an_even_number_of_turns_by_default() -> None:
    assert parsed("pareto").repeats % 2 == 0
    assert Sweep.__dataclass_fields__["repeats"].default % 2 == 0


def test_arrivals_are_the_same_for_all_arms_and_drawn_anew_for_each_repeat() -> None:
    trace = Trace(tuple(TraceRequest(1000.0 * i, 10 + i, 5) for i in range(20)))
    rates = Sweep(Workload(trace), loads=[2.0], by_rate=True)
    first, again, second = rates.at(2.0, 0), rates.at(2.0, 0), rates.at(2.0, 1)
    assert first.trace.requests == again.trace.requests
    assert [r.timestamp for r in first.trace.requests] != [r.timestamp for r in second.trace.requests]
    assert [r.input_length for r in first.trace.requests] == [r.input_length for r in second.trace.requests]
    closed = Sweep(Workload(trace), loads=[2])
    assert closed.at(2, 0) == closed.at(2, 1)
