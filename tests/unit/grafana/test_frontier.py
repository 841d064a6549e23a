"""A load test's frontier as rules: from what its own code writes, and nothing else by mistake."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dspark_loadtest import pareto
from dspark_loadtest.sweep import Run
from dspark_sglang.bench import report
from grafana import frontier
from tests.support.prometheus import require


def measured(user: float | None, total: float | None, failed: int = 0) -> dict[str, Any]:
    """Return as much of a run's summary as a sweep takes."""
    series = None if user is None else dict.fromkeys(("p10", "p50", "p90"), user)
    return {
        "tok_s_user": series,
        "output_tok_s": total,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "wall_s": 1.0,
        "ttft_due_s": {"p50": 1.0, "p99": 1.0},
        "tpot_s": series,
        "speculation": None,
        "concurrency": 1.0,
        "goodput": {"share": 1.0},
        "requests": {"failed": failed},
        "problems": [],
    }


def sweep(runs: list[Run]) -> dict[str, Any]:
    summary = pareto.summarise_sweep(runs, [20.0], baseline="plain", devices=2)
    document = {"schema": pareto.SCHEMA, "by": "concurrent requests", "summary": summary}
    return json.loads(json.dumps(document))


def values(document: dict[str, Any]) -> dict[tuple[str, str], str]:
    (group,) = document["groups"]
    return {(rule["labels"]["point"], rule["labels"]["axis"]): rule["expr"] for rule in group["rules"]}


def test_a_sweep_of_the_load_test_becomes_rules_that_promtool_accepts(tmp_path: Path) -> None:
    runs = [Run(r, 0, "plain", load, measured(30.0 + r, 10.0 * load)) for r in range(3) for load in (1.0, 4.0)]
    runs += [Run(0, 0, "adaptive", 1.0, measured(50.25, 50.25)), Run(0, 0, "adaptive", 4.0, measured(None, 1.0))]
    document = frontier.rules(sweep(runs))
    assert values(document) == {
        ("plain, 1 concurrent requests", "user"): "vector(31)",
        ("plain, 1 concurrent requests", "total"): "vector(10)",
        ("plain, 4 concurrent requests", "user"): "vector(31)",
        ("plain, 4 concurrent requests", "total"): "vector(40)",
        ("adaptive, 1 concurrent requests", "user"): "vector(50.25)",
        ("adaptive, 1 concurrent requests", "total"): "vector(50.25)",
    }
    path = tmp_path / "frontier.yaml"
    path.write_text(yaml.safe_dump(document))
    result = subprocess.run([require("promtool"), "check", "rules", str(path)], capture_output=True, check=False)
    assert result.returncode == 0, result.stdout


def test_loads_with_failed_requests_are_no_points() -> None:
    runs = [Run(0, 0, "plain", 1.0, measured(30.0, 30.0)), Run(0, 0, "plain", 4.0, measured(20.0, 80.0, failed=3))]
    assert {point for point, _ in values(frontier.rules(sweep(runs)))} == {"plain, 1 concurrent requests"}
    with pytest.raises(ValueError, match="no load that was measured without failures"):
        frontier.rules(sweep(runs[1:]))


def test_levels_of_the_benchmark_are_points() -> None:
    spread = {"tok_s": {"median": 80.5}, "tok_s_user": {"median": 20.25}}
    level = {"concurrency": 4, "arms": {"plain": spread, "other": {"tok_s": None}}}
    assert values(frontier.rules({"schema": report.SCHEMA, "summary": [level]})) == {
        ("plain, 4 concurrent requests", "user"): "vector(20.25)",
        ("plain, 4 concurrent requests", "total"): "vector(80.5)",
    }


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "its schema is None"),
        ({"summary": {"arms": {}}}, "its schema is None"),
        ({"schema": "dspark-loadtest-run/1"}, "its schema is 'dspark-loadtest-run/1'"),
        ({"schema": ["x"]}, r"its schema is \['x'\]"),
        ({"schema": pareto.SCHEMA}, "KeyError: 'summary'"),
        ({"schema": pareto.SCHEMA, "summary": [1]}, "no sweep of schema dspark-loadtest-pareto/1"),
        ({"schema": report.SCHEMA, "summary": {"arms": {}}}, "no sweep of schema 1"),
        ({"schema": report.SCHEMA, "summary": []}, "no load that was measured"),
    ],
)
def test_another_file_is_refused_in_one_sentence(
    document: Any,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match=said):
        frontier.rules(document)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    monkeypatch.setattr("sys.argv", ["frontier", str(path)])
    assert frontier.main() == 1
    error = capsys.readouterr().err
    assert error.startswith(f"frontier: error: {path}: it")
    assert "give the pareto.json of dspark loadtest pareto" in error
    assert error.count("\n") == 1


def test_the_names_of_the_files_are_those_that_are_written() -> None:
    assert (frontier.PARETO, frontier.BENCH) == (pareto.SCHEMA, report.SCHEMA)
