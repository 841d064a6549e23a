"""Plots of simulated studies: one PNG each, error bars are one standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from sgl_dspark.reports import simulate_fleet
from sgl_dspark.reports.simulate_tables import (
    ADAPTIVE,
    CONFIDENCE_BASE,
    CONTEXT_BASE,
    FIGURE_8,
    LAG_BASE,
    STAIRCASE_BASE,
    THROUGHPUT,
    best_fixed,
)
from sgl_dspark.simulator.results import paired, summarise
from sgl_dspark.simulator.studies import LAGS, Cell

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

DPI = 72


def plot(study: str, cells: Sequence[Cell], path: Path) -> None:
    """Draw one study to a PNG file."""
    figure = PLOTS[study](cells)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _lag(cells: Sequence[Cell]) -> Any:
    machines = list(dict.fromkeys(cell.machine for cell in cells))
    columns = len(cells) // len(machines)
    figure, axes = plt.subplots(
        len(machines), columns, figsize=(2.7 * columns, 2.7 * len(machines)), sharey="row", squeeze=False
    )
    for axis, cell in zip(axes.ravel(), cells, strict=True):
        for label, suffix, lags in (
            ("as it serves", "", LAGS),
            ("unsmoothed", ", unsmoothed", LAGS),
            ("K as it was", ", K as it was", LAGS[1:]),
        ):
            losses = [paired(cell.arms[f"lag {lag}{suffix}"], cell.arms[LAG_BASE], THROUGHPUT) for lag in lags]
            means, errors = [100 * (loss.mean - 1) for loss in losses], [100 * loss.std for loss in losses]
            axis.errorbar(lags, means, errors, marker="o", capsize=3, label=label)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(title=f"{cell.machine}, {cell.load}", xticks=LAGS)
    for axis in axes[:, 0]:
        axis.set_ylabel("throughput against lag 0, %")
    for axis in axes[-1]:
        axis.set_xlabel("lag, steps")
    axes[0, 0].legend(fontsize=8)
    return figure


def _context(cells: Sequence[Cell]) -> Any:
    return _bars(cells, ["tokens only, profiled long", "context-aware"], CONTEXT_BASE)


def _staircase(cells: Sequence[Cell]) -> Any:
    return _bars(cells, [name for name in cells[0].arms if name != STAIRCASE_BASE], STAIRCASE_BASE)


def _confidence(cells: Sequence[Cell]) -> Any:
    return _bars(cells, [name for name in cells[0].arms if name != CONFIDENCE_BASE], CONFIDENCE_BASE)


def _bars(cells: Sequence[Cell], arms: Sequence[str], base: str) -> Any:
    figure, axis = plt.subplots(figsize=(12, 4.5))
    width = 0.8 / len(arms)
    for index, arm in enumerate(arms):
        ratios = [paired(cell.arms[arm], cell.arms[base], THROUGHPUT) for cell in cells]
        at = [place + (index - (len(arms) - 1) / 2) * width for place in range(len(cells))]
        heights, errors = [100 * (ratio.mean - 1) for ratio in ratios], [100 * ratio.std for ratio in ratios]
        axis.bar(at, heights, width, yerr=errors, capsize=2, label=arm)
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_xticks(range(len(cells)), [f"{cell.machine}\n{cell.load}" for cell in cells], fontsize=8)
    axis.set_ylabel(f"decode throughput against\n{base}, %")
    axis.legend(fontsize=8)
    return figure


def _load(cells: Sequence[Cell]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5))
    for machine in dict.fromkeys(cell.machine for cell in cells):
        rows = [cell for cell in cells if cell.machine == machine]
        at = [cell.concurrency for cell in rows]
        lengths = [summarise(cell.arms[ADAPTIVE])["mean_verify_len"] for cell in rows]
        left.errorbar(at, [v.mean for v in lengths], [v.std for v in lengths], marker="o", capsize=3, label=machine)
        ratios = [paired(cell.arms[ADAPTIVE], cell.arms[best_fixed(cell.arms)], THROUGHPUT) for cell in rows]
        right.errorbar(at, [r.mean for r in ratios], [r.std for r in ratios], marker="o", capsize=3, label=machine)
    left.plot(list(FIGURE_8), [length for length, _ in FIGURE_8.values()], "kx", label="paper, Fig. 8, Flash")
    left.set(xlabel="concurrency", ylabel="mean verify length, anchor included", xscale="log")
    right.set(xlabel="concurrency", ylabel="adaptive / best fixed length", xscale="log")
    right.axhline(1, color="grey", linewidth=0.8)
    left.legend(fontsize=8)
    return figure


def _fleet(cells: Sequence[Cell]) -> Any:
    by_cv = simulate_fleet.by_unevenness(cells)
    figure, axes = plt.subplots(2, len(by_cv), figsize=(4 * len(by_cv), 6), sharex=True, sharey="row", squeeze=False)
    for column, (cv, rows) in enumerate(by_cv.items()):
        for axis, name in zip(axes[:, column], ("slow_user_tok_s", "ttft_p99_s"), strict=True):
            for arm in rows[0][1].arms:
                spread = [summarise(cell.arms[arm])[name] for _, cell in rows]
                at = [rate for rate, _ in rows]
                axis.errorbar(at, [s.mean for s in spread], [s.std for s in spread], marker="o", capsize=3, label=arm)
        axes[0, column].set_title(f"CV {cv:g}")
        axes[1, column].set(xlabel="requests a second and replica", yscale="log")
    axes[0, 0].set_ylabel("tok/s that 95 % of users reach")
    axes[1, 0].set_ylabel("TTFT, 99th percentile, s")
    axes[0, 0].legend(fontsize=8)
    return figure


def _compare(cells: Sequence[Cell]) -> Any:
    figure, axes = plt.subplots(1, len(cells), figsize=(8 * len(cells), 4.5), squeeze=False)
    for axis, cell in zip(axes[0], cells, strict=True):
        speeds = [summarise(runs)[THROUGHPUT] for runs in cell.arms.values()]
        axis.barh(list(cell.arms), [s.mean for s in speeds], xerr=[s.std for s in speeds], capsize=3)
        axis.invert_yaxis()
        axis.set(title=f"{cell.machine}, {cell.load}", xlabel="decode tokens a second")
    return figure


PLOTS: dict[str, Callable[[Sequence[Cell]], Any]] = {
    "lag": _lag,
    "context": _context,
    "staircase": _staircase,
    "load": _load,
    "confidence": _confidence,
    "fleet": _fleet,
    "compare": _compare,
}
