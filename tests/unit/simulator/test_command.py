"""``dspark simulate`` from its options to its files."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.reports import simulate
from sgl_dspark.reports.simulate_mine import load_profile
from sgl_dspark.reports.simulate_tables import FIGURE_8
from sgl_dspark.simulator import studies
from sgl_dspark.simulator.arrivals import Lengths, Workload, closed_loop
from sgl_dspark.simulator.machines import cpu_like
from sgl_dspark.simulator.results import Spread
from sgl_dspark.sps.model import StepTimeModel
from sgl_dspark.sps.store import Fingerprint, save


def run(*options: str) -> int:
    parser = ArgumentParser()
    simulate.add_arguments(parser)
    return simulate.run(parser.parse_args(options))


def tiny(*_: object) -> Callable[[np.random.Generator], Workload]:
    return lambda rng: closed_loop(6, 2, Lengths(20, 30), rng)


@pytest.fixture
def small_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_closed", "_bursty", "_arriving", "_draining", "_two_lengths"):
        monkeypatch.setattr(studies, name, tiny)


@pytest.mark.usefixtures("small_studies")
def test_all_studies_write_figures_tables_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--study", "all", "--seeds", "2", "--out", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    for name in studies.STUDIES:
        document = json.loads((tmp_path / f"{name}.json").read_text())
        assert document["seeds"] == [0, 1]
        for cell in document["cells"]:
            for arm in cell["arms"].values():
                runs = [figures["decode_tok_s"] for figures in arm["runs"]]
                assert len(runs) == 2
                assert arm["spread"]["decode_tok_s"]["mean"] == pytest.approx(sum(runs) / 2)
        assert (tmp_path / f"{name}.md").read_text().strip() in printed
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    # The paper's figures stand beside ours at the same concurrency.
    row = next(line for line in (tmp_path / "load.md").read_text().splitlines() if line.endswith("| 4.94 | 3736 |"))
    assert row.startswith("| 20 |")
    assert 20 in FIGURE_8


def test_a_table_gives_the_ratio_of_the_same_seeds(tmp_path: Path) -> None:
    options = ["--study", "compare", "--machine", "cpu", "--requests", "12", "--output-tokens", "20", "--seeds", "3"]
    assert run(*options, "--load", "closed:2", "--lags", "2", "--out", str(tmp_path)) == 0
    cell = json.loads((tmp_path / "compare.json").read_text())["cells"][0]
    assert list(cell["arms"])[-1] == "adaptive lag 2"
    plain = cell["arms"]["no-spec"]["spread"]
    assert plain["mean_verify_len"] == {"mean": 1.0, "std": 0.0, "low": 1.0, "high": 1.0}
    assert f"| no-spec | {plain['decode_tok_s']['mean']:.1f} ± " in (tmp_path / "compare.md").read_text()


@pytest.mark.parametrize("load", ["closed:3", "poisson:5", "bursty:5:4", "drain"])
def test_a_measured_profile_and_recorded_confidences_are_served(tmp_path: Path, load: str) -> None:
    model = cpu_like().steps
    assert isinstance(model, StepTimeModel)
    save(tmp_path / "profile.json", model, Fingerprint({"model": "any"}))
    rng = np.random.default_rng(0)
    verified = rng.integers(0, 5, 50)
    records = RecordSet.of(rng.normal(1, 1, (50, 4)), verified, np.minimum(verified, 2), np.zeros(50))
    records.save(tmp_path / "records.npz")
    files = ["--profile", str(tmp_path / "profile.json"), "--records", str(tmp_path / "records.npz")]
    options = ["--study", "compare", "--seeds", "1", "--requests", "8", "--output-tokens", "20", "--load", load]
    assert run(*options, *files, "--out", str(tmp_path / "out")) == 0
    cell = json.loads((tmp_path / "out" / "compare.json").read_text())["cells"][0]
    assert (cell["machine"], cell["load"]) == ("profile.json", load)
    assert "static 4" in cell["arms"]
    assert "static 5" not in cell["arms"]
    assert cell["arms"]["static 4"]["spread"]["tokens"]["mean"] == cell["arms"]["no-spec"]["spread"]["tokens"]["mean"]
    assert load_profile(tmp_path / "profile.json").steps.plain_time(3, 10) == model.plain_time(3, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "0"], "--seeds: 0"),
        (["--load", "closed"], "--load: 'closed'"),
        (["--load", "closed:2.5"], "--load: 'closed:2.5'"),
        (["--load", "poisson:often"], "--load: 'poisson:often'"),
        (["--load", "bursty:1:11"], "cv: 11"),
        (["--machine", "abacus"], "--machine: 'abacus'"),
        (["--gamma", "9"], "gamma: 9"),
        (["--mix", "0", "0", "0"], "mix: "),
        (["--temperature", "0"], "temperature: 0"),
        (["--lags", "-1"], "lag: -1"),
        (["--max-running", "0"], "max_running: 0"),
        (["--requests", "0"], "count: 0"),
        (["--trace", "/nonexistent/trace.csv"], "/nonexistent/trace.csv"),
        (["--profile", "/nonexistent/profile.json"], "/nonexistent/profile.json"),
        (["--records", "/nonexistent/records.npz"], "/nonexistent/records.npz"),
    ],
)
def test_wrong_options_end_with_one_sentence_that_names_them(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--study", "compare", "--out", str(tmp_path / "out"), *options) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "out").exists()


def test_a_spread_of_one_run_has_no_deviation() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 0.0, 3.0, 3.0)
    assert Spread.of([1.0, 3.0]).std == pytest.approx(2**0.5)
