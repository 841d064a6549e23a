"""Draws a sweep: throughput and verify length of every arm against concurrency (as Fig. 8 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dspark_sglang.bench import BenchError
from sgl_dspark.comparison import Spread, styles

_FORMATS = (".png", ".svg", ".pdf")
_LABELS = {
    "tok_s": "tokens per second, all requests",
    "mean_verify_len": "verify length (tokens per request and step)",
}


def check_plot(path: Path) -> None:
    """Raise `BenchError` if nothing can be drawn there; called before time is spent on measuring."""
    if path.suffix not in _FORMATS:
        raise BenchError(f"--plot writes {', '.join(_FORMATS)}, not {path.name!r}")
    if find_spec("matplotlib") is None:
        raise BenchError("--plot needs matplotlib, which is not installed; install it or leave --plot out")


def draw(levels: Sequence[dict[str, Any]], arms: Sequence[str], path: Path) -> None:
    """Write a figure of one panel per metric that was measured.

    Parameters
    ----------
    levels : sequence of dict
        From `policy_report.summarise_policies` or `report.summarise`, at least one.
    arms : sequence of str
        Lines, in the order of the legend.
    path : Path
        Its ending chooses the format, see `check_plot`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = [m for m in _LABELS if any(series(levels, arm, m) for arm in arms)]
    figure = Figure(figsize=(5.2 * len(metrics), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    concurrency = [level["concurrency"] for level in levels]
    for panel, metric in zip(panels, metrics, strict=True):
        for arm, style in styles(arms).items():
            points = series(levels, arm, metric)
            if points:
                middles = [value.median for _, value in points]
                reach = [[v.median - v.low for _, v in points], [v.high - v.median for _, v in points]]
                panel.errorbar([at for at, _ in points], middles, yerr=reach, label=arm, capsize=2, **style)
        panel.set_xscale("log", base=2)
        panel.set_xticks(concurrency, [str(level) for level in concurrency])
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        panel.set_xlabel("concurrent requests")
        panel.set_ylabel(_LABELS[metric])
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


def series(levels: Sequence[dict[str, Any]], arm: str, metric: str) -> list[tuple[int, Spread]]:
    """Return (concurrency, spread over rounds) of the levels at which ``metric`` was measured."""
    found = ((level["concurrency"], level["arms"][arm].get(metric)) for level in levels)
    return [(concurrency, value) for concurrency, value in found if value is not None]
