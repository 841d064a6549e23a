"""``dspark evaluate`` on the fixture pair: every result that it promises is there, and wrong options are named."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("matplotlib")

from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.evaluation import command, protocol
from sgl_dspark.reports.evaluation import evaluate

PAIR = Path(__file__).parents[2] / "fixtures" / "pair"
QUESTIONS = [f"What is {a} + {b} - {a % 7}?" for a, b in zip(range(11, 90, 7), range(20, 100, 7), strict=False)]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("prompts")
    files = []
    for name, questions in (("first", QUESTIONS[:6]), ("second", QUESTIONS[6:12])):
        files.append(folder / f"{name}.jsonl")
        files[-1].write_text("".join(json.dumps({"turns": [q]}) + "\n" for q in questions))
    return files


def options(prompts: list[Path], *more: str, draft: Path = PAIR / "draft") -> Namespace:
    parser = ArgumentParser()
    command.add_arguments(parser)
    fixed = ["--target", str(PAIR / "target"), "--draft", str(draft), "--prompts", *map(str, prompts)]
    return parser.parse_args([*fixed, "--max-new-tokens", "24", "--max-positions", "160", "--device", "cpu", *more])


def quiet(line: str) -> None:
    """Take a log line and drop it."""


def test_everything_is_reported(prompts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole fixture would take a minute; fewer rounds calibrate just as well for this purpose.
    monkeypatch.setattr(protocol, "LEAST_ROUNDS", 10)
    more = ("--temperatures", "1", "0", "--thresholds", "0.6", "--latency", "1", "3", "--out", str(tmp_path / "out"))
    text = evaluate(options(prompts, *more), quiet)
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (tmp_path / "out" / "evaluation.md").read_text() == text
    keys = [(r["name"], r["temperature"], r["threshold"]) for r in found["results"]]
    assert keys == [
        ("first", 1.0, 0.0), ("second", 1.0, 0.0), ("first", 0.0, 0.0), ("second", 0.0, 0.0),
        ("first", 1.0, 0.6), ("second", 1.0, 0.6),
    ]  # fmt: skip
    for result in found["results"]:
        acceptance = result["acceptance"]
        assert 1 <= acceptance["mean_accept_len"] <= acceptance["mean_verify_len"] <= 8
        assert len(acceptance["conditional"]) == len(acceptance["survival"]) == 7
        assert result["prompts"] == 6
    whole, cut = found["results"][0]["acceptance"], found["results"][4]["acceptance"]
    assert cut["mean_verify_len"] < whole["mean_verify_len"]
    assert [round(m["mean_accept_len"], 9) for m in found["macro_mean"]] == [
        round(sum(r["acceptance"]["mean_accept_len"] for r in found["results"][i : i + 2]) / 2, 9) for i in (0, 2, 4)
    ]
    assert found["calibration"].keys() == {"1", "0"}
    assert [latency["rows"] for latency in found["latency"]] == [1, 3]
    assert all(0 < latency["draft_share"] < 1 for latency in found["latency"])
    for name in ("conditional.png", "thresholds.png", "reliability.png"):
        assert (tmp_path / "out" / name).stat().st_size > 1000


def test_results_do_not_depend_on_how_many_rows_run_together(prompts: list[Path], tmp_path: Path) -> None:
    rounds = []
    for rows in ("1", "5"):
        out = tmp_path / rows
        evaluate(options(prompts, "--rows", rows, "--dtype", "float32", "--out", str(out)), quiet)
        results = json.loads((out / "evaluation.json").read_text())["results"]
        rounds.append([{k: v for k, v in r.items() if k != "seconds"} for r in results])
    assert rounds[0] == rounds[1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--rows", "0"), "--rows is 0"),
        (("--max-new-tokens", "0"), "--max-new-tokens is 0"),
        (("--shortlist", "0"), "--shortlist is 0"),
        (("--latency", "0"), "--latency must be"),
        (("--max-positions", "-5"), "--max-positions is -5"),
        (("--chat-template-kwargs", "[1]"), "--chat-template-kwargs must be"),
        (("--temperatures", "-1"), "--temperatures must not be negative"),
    ],
)
def test_wrong_options_are_named(prompts: list[Path], more: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(options(prompts, *more), quiet)


def test_wrong_paths_are_named(prompts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no draft folder"):
        evaluate(options(prompts, draft=tmp_path / "none"), quiet)
    with pytest.raises(DataError, match="cannot read prompts"):
        evaluate(options([tmp_path / "none.jsonl"]), quiet)
    with pytest.raises(DataError, match="more room"):
        evaluate(options(prompts, "--max-positions", "3"), quiet)
    with pytest.raises(DataError, match="one name"):
        evaluate(options([prompts[0], prompts[0]]), quiet)
