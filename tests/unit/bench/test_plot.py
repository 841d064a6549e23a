"""The figure of a sweep: its series and styles, and that a file comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_sglang.bench import BenchError, plot
from dspark_sglang.bench.policy_report import summarise_policies
from dspark_sglang.bench.session import Run
from sgl_dspark.comparison import styles
from tests.unit.bench.test_report import _run

ARMS = ["plain", "adaptive", "static:3"]


def _runs() -> list[Run]:
    runs = []
    for level in (1, 4):
        for round_ in (0, 1):
            for arm, seconds in zip(ARMS, (6.0, 2.0, 3.0 + round_), strict=True):
                counts = None if arm == "plain" else {"rounds": 10, "verify_tokens": 30 + level}
                results = _run(round_, arm, seconds).results
                runs.append(Run(round_, 0, arm, level, 0.0, results, counts))
    return runs


def test_series_hold_the_levels_that_were_measured() -> None:
    levels = summarise_policies(_runs(), ARMS)
    assert [(at, value.values) for at, value in plot.series(levels, "static:3", "mean_verify_len")] == [
        (1, (3.1, 3.1)),
        (4, (3.4, 3.4)),
    ]
    assert plot.series(levels, "plain", "mean_verify_len") == []
    assert [at for at, _ in plot.series(levels, "plain", "tok_s")] == [1, 4]


def test_no_two_arms_look_alike() -> None:
    arms = ["plain", "adaptive", *(f"static:{i}" for i in range(7))]
    looks = {(style["color"], style["marker"]) for style in styles(arms).values()}
    assert len(looks) == len(arms)
    assert styles(arms)["adaptive"]["color"] == "black"


def test_a_figure_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "sweep.svg"
    plot.draw(summarise_policies(_runs(), ARMS), ARMS, file)
    assert file.read_text().count("</svg>") == 1
    plot.draw(summarise_policies(_runs(), ARMS), ARMS, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes()[:4] == b"\x89PNG"


def test_what_cannot_be_drawn_is_reported_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match=r"--plot writes \.png, \.svg, \.pdf, not 'figure'"):
        plot.check_plot(Path("figure"))
    monkeypatch.setattr(plot, "find_spec", lambda _: None)
    with pytest.raises(BenchError, match="--plot needs matplotlib"):
        plot.check_plot(Path("figure.png"))
