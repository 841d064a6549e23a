"""Plots of an evaluation: conditional acceptance per slot (Fig. 2), the threshold sweep (Fig. 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sgl_dspark.evaluation.protocol import SetResult
from sgl_dspark.reports.figure import new_figure


def plot_conditional(path: Path, results: Sequence[SetResult]) -> None:
    """Draw acceptance of each slot given an accepted prefix, one line per prompt set and temperature."""
    figure = new_figure(6.4, 4.0)
    axis = figure.subplots()
    for result in results:
        rates = result.acceptance.conditional
        axis.plot(range(1, len(rates) + 1), rates, marker="o", label=f"{result.name}, T={result.temperature:g}")
    axis.set(xlabel="slot", ylabel="acceptance given an accepted prefix", ylim=(0, 1))
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def plot_thresholds(path: Path, results: Sequence[SetResult], temperature: float) -> None:
    """Draw accepted tokens, verified tokens and their ratio against the confidence threshold."""
    curves: dict[str, list[SetResult]] = {}
    for result in results:
        if result.temperature == temperature:
            curves.setdefault(result.name, []).append(result)
    figure = new_figure(11.0, 3.6)
    panels = figure.subplots(1, 3)
    for name, found in curves.items():
        found.sort(key=lambda r: r.threshold)
        _threshold_curves(panels, name, found)
    for axis, title in zip(panels, ("accept length", "verify length", "accepted / verified"), strict=True):
        axis.set(xlabel="confidence threshold", ylabel=title)
    panels[0].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def _threshold_curves(panels: Sequence[Any], name: str, found: Sequence[SetResult]) -> None:
    at = [r.threshold for r in found]
    accepted = [r.acceptance.mean_accept_len for r in found]
    verified = [r.acceptance.mean_verify_len for r in found]
    panels[0].plot(at, accepted, marker="o", label=name)
    panels[1].plot(at, verified, marker="o")
    panels[2].plot(at, [a / v for a, v in zip(accepted, verified, strict=True)], marker="o")


def plot_lines(path: Path, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str) -> None:
    """Draw named curves of (x values, y values)."""
    figure = new_figure(6.4, 4.0)
    axis = figure.subplots()
    for name, (at, values) in lines.items():
        axis.plot(at, values, marker="o", markersize=3, label=name)
    axis.set(xlabel=x, ylabel=y)
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)
