"""What a step-time model says: a table and a plot for the terminal, and a drawing (the paper's capacity curve)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.errors import DsparkError
from sgl_dspark.reports.figure import new_figure
from sgl_dspark.sps.model import StepTimes

_COLOURS = ("#1b4f72", "#2a9d8f", "#8ab17d", "#e9c46a", "#f4a261", "#e76f51", "#8d3b72", "#555555")
_MARKS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class LoadCurve:
    """Step times at one number of requests.

    Attributes
    ----------
    requests, gamma : int
        R and G.
    step_times : float64 [R*G + 1]
        Seconds of a drafted step that verifies R + k tokens.
    plain_s : float
        Seconds of a step without drafting.
    expected_tokens : float64 [R*G + 1]
        Emitted in such a step, under the acceptance assumed.
    """

    requests: int
    gamma: int
    step_times: NDArray[np.float64]
    plain_s: float
    expected_tokens: NDArray[np.float64]

    @property
    def tokens_per_s(self) -> NDArray[np.float64]:
        """Emitted tokens per second, float64 [R*G + 1]."""
        return self.expected_tokens / self.step_times

    @property
    def best_budget(self) -> int:
        """K of the highest throughput among drafted steps; the smallest of equals."""
        return int(np.argmax(self.tokens_per_s))

    @property
    def gain(self) -> float:
        """Highest drafted throughput over that of plain steps."""
        return float(self.tokens_per_s[self.best_budget]) * self.plain_s / self.requests


def load_curves(
    model: StepTimes, requests: Sequence[int], gamma: int, context_per_request: int = 512, acceptance: float = 0.8
) -> list[LoadCurve]:
    """Ask a model for its step times at several loads.

    Parameters
    ----------
    model : StepTimes
        Measured, stored or corrected online.
    requests : sequence of int
        Each R >= 1.
    gamma : int
        Drafts per block.
    context_per_request : int
        Tokens in the KV cache of each request.
    acceptance : float
        In (0, 1]: that a draft is accepted if those before it are, the same for every slot and request. An assumption:
        the planner decides by the confidence of each slot.
    """
    curves = []
    for count in requests:
        survival = np.repeat(acceptance ** np.arange(1, gamma + 1), count)
        curves.append(
            LoadCurve(
                requests=count,
                gamma=gamma,
                step_times=model.step_times(count, gamma, count * context_per_request),
                plain_s=model.plain_time(count, count * context_per_request),
                expected_tokens=count + np.concatenate(([0.0], np.cumsum(survival))),
            )
        )
    return curves


def step_time_table(curves: Sequence[LoadCurve]) -> str:
    """Lay out milliseconds per step, one row per load, one column per number of drafts for each request."""
    gamma = curves[0].gamma
    lines = [
        "requests   plain  " + "".join(f"{f'+{drafts}':>8}" for drafts in range(gamma + 1)) + "   best K  over plain",
        "              ms  " + "".join(f"{'ms':>8}" for _ in range(gamma + 1)),
    ]
    for curve in curves:
        each = "".join(f"{1e3 * curve.step_times[curve.requests * drafts]:>8.2f}" for drafts in range(gamma + 1))
        best = f"{curve.best_budget:>9}{curve.gain:>11.2f}x"
        lines.append(f"{curve.requests:>8}{1e3 * curve.plain_s:>8.2f}  {each}{best}")
    return "\n".join(lines)


def step_time_plot(curves: Sequence[LoadCurve], width: int = 72, height: int = 16) -> str:
    """Draw step time against verify tokens with letters, both axes logarithmic; one letter per load."""
    tokens = [curve.requests + np.arange(curve.step_times.shape[0]) for curve in curves]
    right = float(np.log(max(max(int(t[-1]) for t in tokens), 2)))
    bottom = float(np.log(min(float(c.step_times[0]) for c in curves)))
    top = max(float(np.log(max(float(c.step_times[-1]) for c in curves))), bottom + 1e-6)
    cells = [[" "] * width for _ in range(height)]
    for mark, size, curve in zip(_MARKS, tokens, curves, strict=False):
        column = np.rint(np.log(size) / right * (width - 1)).astype(int)
        row = np.rint((top - np.log(curve.step_times)) / (top - bottom) * (height - 1)).astype(int)
        for x, y in zip(column.tolist(), row.tolist(), strict=True):
            cells[y][x] = mark
    lines = []
    for row_number, line in enumerate(cells):
        seconds = float(np.exp(top - (top - bottom) * row_number / (height - 1)))
        labelled = row_number % 3 == 0 or row_number == height - 1
        lines.append(f"{f'{1e3 * seconds:.3g} ms' if labelled else '':>10} |{''.join(line)}".rstrip())
    last = f"{round(float(np.exp(right)))} verify tokens"
    lines.append(" " * 11 + "+" + "-" * width)
    lines.append(" " * 12 + "1" + last.rjust(width - 1))
    legend = ", ".join(f"{mark} R={curve.requests}" for mark, curve in zip(_MARKS, curves, strict=False))
    return "\n".join([*lines, " " * 12 + legend])


def save_step_time_plot(path: Path, curves: Sequence[LoadCurve], title: str = "") -> None:
    """Draw step time and tokens per second against verify tokens, a line per load.

    Parameters
    ----------
    path : Path
        ``.png`` (or another format that matplotlib writes).
    curves : sequence of LoadCurve
        From :func:`load_curves`.
    title : str
        What was measured: models, device, threads.

    Raises
    ------
    DsparkError
        If matplotlib is not installed or there is nothing to draw.
    """
    if not curves:
        raise DsparkError("no load to draw; name at least one number of requests")
    figure = new_figure(11, 4.4)
    from matplotlib.ticker import LogLocator, ScalarFormatter

    times, rates = figure.subplots(1, 2, sharex=True)
    for number, curve in enumerate(curves):
        tokens = curve.requests + np.arange(curve.step_times.shape[0])
        style = {"color": _COLOURS[number % len(_COLOURS)], "label": f"R = {curve.requests}"}
        times.plot(tokens, 1e3 * curve.step_times, **style)
        rates.plot(tokens, curve.tokens_per_s, **style)
        for plot, plain in ((times, 1e3 * curve.plain_s), (rates, curve.requests / curve.plain_s)):
            plot.plot([curve.requests], [plain], "o", mfc="none", color=style["color"])
        best = curve.best_budget
        rates.plot([tokens[best]], [curve.tokens_per_s[best]], "o", color=style["color"])
    times.set(xlabel="verify tokens B = R + K", ylabel="step time (ms)")
    rates.set(xlabel="verify tokens B = R + K", ylabel="expected tokens/s")
    times.set_title("drafted step (ring: without drafting)", fontsize=10)
    rates.set_title("at the acceptance assumed (dot: best K)", fontsize=10)
    for plot in (times, rates):
        plot.set_xscale("log", base=2)
        plot.set_yscale("log")
        plot.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        for axis in (plot.xaxis, plot.yaxis):
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter("")
        plot.grid(alpha=0.3, linewidth=0.5)
    times.legend(frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)
