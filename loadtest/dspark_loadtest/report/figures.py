"""Pictures of one run: what it carried over time, and how long users waited."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspark_loadtest.plan import Outcome
from dspark_loadtest.record import RequestRecord
from dspark_loadtest.report.document import Picture
from sgl_dspark.reports.figure import new_figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_MOST_BINS = 200


def save(figure: Any, folder: Path, name: str, caption: str) -> Picture:
    """Write a figure as PNG and SVG and return it as a part of a document."""
    from matplotlib import rc_context

    text = io.StringIO()
    # The same run draws the same file: no date, no random names inside.
    with rc_context({"svg.hashsalt": "dspark"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    (folder / f"{name}.svg").write_text(text.getvalue(), encoding="utf-8")
    figure.savefig(folder / f"{name}.png", dpi=140)
    return Picture(f"{name}.png", caption, text.getvalue())


def tidy(panel: Any, x: str, y: str) -> None:
    """Give a panel its labels and take away what says nothing."""
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def timeline(outcome: Outcome, folder: Path) -> Picture:
    """Draw tokens a second, requests under way and failures over the run."""
    bins = max(1.0, outcome.wall_s / _MOST_BINS)
    edges = np.arange(0, outcome.wall_s + bins, bins, dtype=np.float64)
    figure = new_figure(8, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.step(edges[:-1], token_rate(outcome.records, edges), where="post", color=BLUE)
    tidy(upper, "", "output tokens / s")
    lower.step(edges[:-1], open_requests(outcome.records, edges), where="post", color=GREEN, label="under way")
    broken = [r.end for r in outcome.records if r.failed and r.end is not None]
    if broken:
        lower.plot(broken, np.zeros(len(broken)), "x", color=RED, label="failed", clip_on=False)
    lower.legend(frameon=False, fontsize="small")
    tidy(lower, "seconds of the run", "requests")
    for panel in (upper, lower):
        panel.set_ylim(bottom=0)
    return save(figure, folder, "timeline", f"Tokens and requests over the run, in steps of {bins:.1f} s.")


def waiting(outcome: Outcome, folder: Path) -> Picture | None:
    """Draw the share of requests by time to first token, from sending and from when they were due."""
    done = [record for record in outcome.records if record.ok]
    lines = {
        "from when it was due": [r.ttft_due_s for r in done],
        "from sending (the server's part)": [r.ttft_s for r in done],
    }
    figure = new_figure(8, 3.2)
    left, right = figure.subplots(1, 2)
    drawn = False
    for (label, values), color in zip(lines.items(), (ORANGE, BLUE), strict=True):
        drawn |= _share_below(left, values, label, color)
    drawn |= _share_below(right, [r.tok_s_user for r in done], "", GREEN)
    if not drawn:
        return None
    left.legend(frameon=False, fontsize="small", loc="lower right")
    tidy(left, "time to first token, s", "share of answers")
    tidy(right, "tok/s of a user while decoding", "")
    return save(figure, folder, "waiting", "Time to first token and speed of an answer, as shares of all answers.")


def _share_below(panel: Any, values: Sequence[float | None], label: str, color: str) -> bool:
    found = np.sort([value for value in values if value is not None])
    if len(found):
        panel.step(found, np.arange(1, len(found) + 1) / len(found), where="post", label=label, color=color)
        panel.set_ylim(0, 1)
    return bool(len(found))


def token_rate(records: Sequence[RequestRecord], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tokens a second that arrived between each two edges."""
    total = np.zeros(len(edges) - 1)
    for record in records:
        weights = record.chunk_tokens if record.seen_tokens else np.ones(len(record.chunk_at))
        total += np.histogram(np.asarray(record.chunk_at), bins=edges, weights=np.asarray(weights))[0]
    return np.asarray(total / np.diff(edges), dtype=np.float64)


def open_requests(records: Sequence[RequestRecord], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many requests were under way at the beginning of each bin."""
    sent = np.sort([r.sent for r in records if r.sent is not None and r.end is not None])
    ended = np.sort([r.end for r in records if r.sent is not None and r.end is not None])
    starts = edges[:-1]
    under = np.searchsorted(sent, starts, side="right") - np.searchsorted(ended, starts, side="right")
    return np.asarray(under, dtype=np.float64)
