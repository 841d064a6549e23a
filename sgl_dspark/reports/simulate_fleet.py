"""Tables of the fleet study: what one replica bears under an SLA, and how many a fleet needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sgl_dspark.simulator.results import Figures, summarise
from sgl_dspark.simulator.studies import Cell

# What 95 % of users and 99 % of first tokens are owed: tokens per second, seconds.
SLAS = ((20.0, 1.0), (50.0, 1.0), (80.0, 1.0))
FLEET_RPS = 1000
Rows = Sequence[tuple[float, Cell]]


def by_unevenness(cells: Sequence[Cell]) -> dict[float, list[tuple[float, Cell]]]:
    """Give rate and cell of each coefficient of variation, read from the loads' names, in order of rate."""
    found: dict[float, list[tuple[float, Cell]]] = {}
    for cell in cells:
        rate, _, cv = cell.load.partition(" rps, CV ")
        found.setdefault(float(cv), []).append((float(rate), cell))
    return {cv: sorted(rows, key=lambda row: row[0]) for cv, rows in found.items()}


def tables(cells: Sequence[Cell]) -> list[str]:
    """Return the study's tables, with titles."""
    text = []
    for cv, rows in by_unevenness(cells).items():
        arms = list(rows[0][1].arms)
        body = [[f"{rate:g}", *(_served(cell.arms[arm]) for arm in arms)] for rate, cell in rows]
        head = f"CV {cv:g}: tok/s that 95 % of users reach / TTFT p99 in s / requests decoding together"
        text.append(f"{head}\n\n{_table(['requests/s', *arms], body)}")
    text.append(f"Most requests a second of one replica under an SLA:\n\n{_capacities(cells)}")
    return text


def capacity(rows: Rows, arm: str, tok_s: float, ttft_s: float) -> float | None:
    """Return the most requests a second at which an arm keeps both promises, between measured rates by straight lines.

    Returns
    -------
    float or None
        None if it breaks one at the lowest rate; infinity if it keeps both at the highest, since nothing is known
        beyond.
    """
    figures = [(rate, summarise(cell.arms[arm])) for rate, cell in rows]
    # What is left of each promise; negative where it is broken.
    left = [
        (rate, (spread["slow_user_tok_s"].mean / tok_s - 1, math.log(ttft_s / spread["ttft_p99_s"].mean)))
        for rate, spread in figures
    ]
    if min(left[0][1]) < 0:
        return None
    for (low, before), (high, after) in zip(left, left[1:], strict=False):
        if min(after) < 0:
            parts = [b / (b - a) for b, a in zip(before, after, strict=True) if a < 0]
            return low + (high - low) * min(parts)
    return math.inf


def _capacities(cells: Sequence[Cell]) -> str:
    body = []
    for cv, rows in by_unevenness(cells).items():
        for arm in rows[0][1].arms:
            row = [f"{cv:g}", arm]
            for tok_s, ttft_s in SLAS:
                most = capacity(rows, arm, tok_s, ttft_s)
                row += [_shown(most, rows), *_fleet(most, rows[0][1].arms[arm])]
            body.append(row)
    head = ["CV", "policy"]
    for tok_s, ttft_s in SLAS:
        head += [f"{tok_s:g} tok/s, {ttft_s:g} s", f"replicas for {FLEET_RPS}", "M tok an hour"]
    return _table(head, body)


def _shown(most: float | None, rows: Rows) -> str:
    if most is None:
        return f"below {rows[0][0]:g}"
    return f"above {rows[-1][0]:g}" if math.isinf(most) else f"{most:.1f}"


def _fleet(most: float | None, runs: Sequence[Figures]) -> tuple[str, str]:
    """Return the replicas of a large fleet, and the million tokens that one of them generates in an hour."""
    if most is None or math.isinf(most):
        return "", ""
    tokens = sum(run.tokens for run in runs) / sum(run.requests for run in runs)
    return str(math.ceil(FLEET_RPS / most)), f"{3600 * most * tokens / 1e6:.0f}"


def _served(runs: Sequence[Figures]) -> str:
    spread = summarise(runs)
    slow, late, many = (spread[name].mean for name in ("slow_user_tok_s", "ttft_p99_s", "mean_running"))
    return f"{slow:.0f} / {late:.2f} / {many:.0f}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    align = ["---" if name == "policy" else "---:" for name in head]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, align, *body))
