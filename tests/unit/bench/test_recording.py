"""The benchmark of metrics records what a worker would, and says what it costs."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from dspark_sglang.bench import recording
from dspark_sglang.commands import bench as command


def test_its_steps_are_counted_like_any() -> None:
    load = recording.Load(200)
    for _ in range(3):
        load.run()
    load.fold.fold()
    view = load.fold.sheet.view
    assert view("dspark_steps_total").sum() == 3
    assert view("dspark_verify_length_tokens").sum(axis=0)[:-1].sum() == 600
    # Two requests end in each step, one token short of the round, and two begin.
    assert view("dspark_requests_finished_total").tolist() == [6, 0, 0]
    assert view("dspark_cut_tokens_total") == 6
    assert view("dspark_bonus_tokens_total").tolist() == [594, 206]


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recording, "REQUESTS", (3,))
    monkeypatch.setattr(recording, "STEPS", 100)
    parser = ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["metrics", "--json", str(tmp_path / "m.json")])) == 0
    assert "counting us" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "m.json").read_text())["metrics"]
    assert row["requests"] == 3
    assert 0 < row["step_us"] <= row["step_p95_us"]
