"""The planner's benchmark: same budgets on both sides, turns in order, and a disagreement that is not hidden."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest

from dspark_sglang.bench import BenchError, planner
from dspark_sglang.commands import bench as command


def test_survival_is_what_the_planner_expects() -> None:
    for survival in planner.survival_matrices(5, 3):
        assert (survival.shape, survival.dtype, survival.flags.c_contiguous) == ((5, planner.GAMMA), np.float32, True)
        assert float(survival.min()) >= 0
        assert float(survival.max()) <= 1
        assert bool((np.diff(survival, axis=1) <= 0).all())
    first, second, _ = planner.survival_matrices(5, 3)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, planner.survival_matrices(5, 3)[0])


def test_sides_take_turns_and_untimed_calls_come_first() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str) -> planner.Timed:
        def call(index: int) -> int:
            order.append((name, index))
            return 7

        return call

    timings = planner.alternate([side("a"), side("b")], 2, repeats=2, warm_up=1)
    assert order == [("b", 1), ("a", 1), ("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert len(timings) == 2
    assert all(0 < t.median_us <= t.p95_us for t in timings)


def test_a_disagreement_is_an_error() -> None:
    with pytest.raises(BenchError, match=r"disagree on matrix 2: budgets \{0: 2, 1: 0\}"):
        planner.alternate([lambda i: i, lambda i: i % 2], 4, repeats=4, warm_up=0)


def test_timing_is_in_microseconds() -> None:
    assert planner.Timing.of([1e-6, 2e-6, 4e-6]) == planner.Timing(2.0, pytest.approx(3.8))


@pytest.mark.parametrize("requests", [1, 16])
def test_all_sides_find_the_same_budgets(requests: int) -> None:
    found = planner.measure(requests, repeats=20, warm_up=0)
    assert 0 < found["mean_budget"] <= requests * planner.GAMMA
    assert found["ratio"] == pytest.approx(found["sglang"]["median_us"] / found["ours"]["median_us"])


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {
        name: {"median_us": us, "p95_us": 2 * us} for name, us in (("search", 5.0), ("ours", 8.0), ("sglang", 60.0))
    }
    monkeypatch.setattr(planner, "REQUESTS", (16,))
    monkeypatch.setattr(
        planner, "measure", lambda requests: {"requests": requests, "mean_budget": 84.0, **times, "ratio": 7.5}
    )
    parser = ArgumentParser(allow_abbrev=False)
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["planner", "--json", str(tmp_path / "r.json"), "--markdown"])) == 0
    output = capsys.readouterr().out
    assert "| 16 | search alone | 84.0 | 5.0 | 10.0 | 12.0 |" in output
    assert "|  | ours |  | 8.0 | 16.0 | 7.5 |" in output
    assert json.loads((tmp_path / "r.json").read_text())["planner"][0]["ratio"] == 7.5
    with pytest.raises(BenchError, match="there is no folder /nowhere for --json"):
        command.run(parser.parse_args(["planner", "--json", "/nowhere/r.json"]))
