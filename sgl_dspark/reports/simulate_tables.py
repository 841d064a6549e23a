"""Markdown tables of simulated studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sgl_dspark.reports import simulate_fleet
from sgl_dspark.simulator.arms import NO_SPEC
from sgl_dspark.simulator.results import Figures, Spread, paired, summarise
from sgl_dspark.simulator.studies import LAGS, Cell

THROUGHPUT = "decode_tok_s"
LAG_BASE = "lag 0, unsmoothed"
CONTEXT_BASE = "tokens only, profiled short"
STAIRCASE_BASE = "global, lag 2"
CONFIDENCE_BASE = "calibrated"
ADAPTIVE = "adaptive lag 2"

# Paper, Fig. 8, Flash: concurrency to (mean verify length, tokens a second a GPU).
FIGURE_8 = {
    20: (4.94, 3736),
    50: (4.60, 7745),
    75: (4.35, 10067),
    100: (4.12, 11804),
    125: (3.92, 13163),
    150: (3.75, 14277),
    175: (3.60, 15232),
    200: (3.48, 16088),
}

Row = Sequence[str]


def markdown(study: str, cells: Sequence[Cell]) -> str:
    """Return the tables of one study, with titles."""
    return "\n\n".join(TABLES[study](cells))


def best_fixed(arms: Mapping[str, Sequence[Figures]]) -> str:
    """Name the fixed length, no-spec included, with the highest mean throughput."""
    fixed = [name for name in arms if name == NO_SPEC or name.startswith("static ")]
    return max(fixed, key=lambda name: _mean(arms[name], THROUGHPUT))


def _lag(cells: Sequence[Cell]) -> list[str]:
    text = []
    for title, suffix, lags in (
        ("The planner as it serves", "", LAGS),
        ("Without smoothing (K from one step's confidences, fitted to the current batch)", ", unsmoothed", LAGS[1:]),
        ("K as it was `lag` steps ago, whatever the batch is now", ", K as it was", LAGS[1:]),
    ):
        arms = [f"lag {lag}{suffix}" for lag in lags]
        arms += [] if suffix else ["early-stop"]
        head = f"{title}, decode throughput against {LAG_BASE}:"
        text.append(f"{head}\n\n{_relative(cells, arms, LAG_BASE)}")
    return text


def _context(cells: Sequence[Cell]) -> list[str]:
    arms = ["tokens only, profiled long", "context-aware", "static 1", "static 3", "static 5", "static 7"]
    gained = f"Decode throughput against {CONTEXT_BASE}:\n\n{_relative(cells, arms, CONTEXT_BASE)}"
    return [gained, f"Mean verify length:\n\n{_absolute(cells, [CONTEXT_BASE, *arms[:2]], 'mean_verify_len')}"]


def _staircase(cells: Sequence[Cell]) -> list[str]:
    arms = [name for name in cells[0].arms if name != STAIRCASE_BASE]
    lost = f"Decode throughput against {STAIRCASE_BASE}:\n\n{_relative(cells, arms, STAIRCASE_BASE)}"
    return [lost, f"Mean verify length:\n\n{_absolute(cells, [STAIRCASE_BASE, *arms], 'mean_verify_len')}"]


def _confidence(cells: Sequence[Cell]) -> list[str]:
    arms = [name for name in cells[0].arms if name != CONFIDENCE_BASE]
    return [f"Decode throughput against {CONFIDENCE_BASE}:\n\n{_relative(cells, arms, CONFIDENCE_BASE)}"]


def _load(cells: Sequence[Cell]) -> list[str]:
    text = []
    for machine in dict.fromkeys(cell.machine for cell in cells):
        rows = [cell for cell in cells if cell.machine == machine]
        arms = list(rows[0].arms)
        head = ["concurrency", *arms, "adaptive / best fixed"]
        body = [
            [str(cell.concurrency), *(f"{_mean(cell.arms[arm], THROUGHPUT):.0f}" for arm in arms), _against_best(cell)]
            for cell in rows
        ]
        text.append(f"`{machine}`, decode tokens a second:\n\n{_table(head, body)}")
        text.append(f"`{machine}`, {ADAPTIVE}:\n\n{_adaptive(rows)}")
    return text


def _adaptive(cells: Sequence[Cell]) -> str:
    paper = cells[0].machine == "figure8"
    head = ["concurrency", "mean verify length", "accept length", "tok/s/user", "decode tok/s", "TTFT p50 / p99 s"]
    head += ["wait p50 / p99 s", "plain steps", *(["Fig. 8 verify length", "Fig. 8 tok/s"] if paper else [])]
    body = []
    for cell in cells:
        spread = summarise(cell.arms[ADAPTIVE])
        row = [str(cell.concurrency), _value(spread["mean_verify_len"], 2), _value(spread["mean_accept_len"], 2)]
        row += [_value(spread["user_tok_s"], 1), _value(spread[THROUGHPUT], 0)]
        row += [f"{spread[f'{kind}_p50_s'].mean:.2f} / {spread[f'{kind}_p99_s'].mean:.2f}" for kind in ("ttft", "wait")]
        row.append(f"{spread['plain_steps'].mean:.1%}")
        if paper:
            row += [
                f"{value:.2f}" if isinstance(value, float) else str(value)
                for value in FIGURE_8.get(cell.concurrency or 0, ("", ""))
            ]
        body.append(row)
    return _table(head, body)


def _compare(cells: Sequence[Cell]) -> list[str]:
    head = ["policy", "decode tok/s", "busy tok/s", "tok/s/user", "verify length", "accept length", "acceptance"]
    head += ["plain steps", "TTFT p50 / p99 s", "wait p50 / p99 s", "utilisation"]
    text = []
    for cell in cells:
        body = []
        for name, runs in cell.arms.items():
            spread = summarise(runs)
            row = [
                name,
                _value(spread[THROUGHPUT], 1),
                _value(spread["busy_tok_s"], 1),
                _value(spread["user_tok_s"], 1),
            ]
            row += [_value(spread["mean_verify_len"], 2), _value(spread["mean_accept_len"], 2)]
            row += ["" if name == NO_SPEC else f"{spread['acceptance'].mean:.1%}", f"{spread['plain_steps'].mean:.1%}"]
            row += [
                f"{spread[f'{kind}_p50_s'].mean:.3f} / {spread[f'{kind}_p99_s'].mean:.3f}" for kind in ("ttft", "wait")
            ]
            body.append([*row, f"{spread['utilisation'].mean:.1%}"])
        text.append(f"`{cell.machine}`, {cell.load}:\n\n{_table(head, body)}")
    return text


TABLES: dict[str, Callable[[Sequence[Cell]], list[str]]] = {
    "lag": _lag,
    "context": _context,
    "staircase": _staircase,
    "load": _load,
    "confidence": _confidence,
    "fleet": simulate_fleet.tables,
    "compare": _compare,
}


def _relative(cells: Sequence[Cell], arms: Sequence[str], base: str) -> str:
    head = ["machine", "load", f"{base}, tok/s", *arms]
    body = []
    for cell in cells:
        row = [cell.machine, cell.load, f"{_mean(cell.arms[base], THROUGHPUT):.0f}"]
        row += [_percent(paired(cell.arms[arm], cell.arms[base], THROUGHPUT)) for arm in arms]
        body.append(row)
    return _table(head, body)


def _absolute(cells: Sequence[Cell], arms: Sequence[str], figure: str) -> str:
    body = [
        [cell.machine, cell.load, *(_value(summarise(cell.arms[arm])[figure], 2) for arm in arms)] for cell in cells
    ]
    return _table(["machine", "load", *arms], body)


def _against_best(cell: Cell) -> str:
    best = best_fixed(cell.arms)
    ratio = paired(cell.arms[ADAPTIVE], cell.arms[best], THROUGHPUT)
    return f"{ratio.mean:.3f} ± {ratio.std:.3f} ({best})"


def _mean(runs: Sequence[Figures], figure: str) -> float:
    return Spread.of([getattr(run, figure) for run in runs]).mean


def _percent(ratio: Spread) -> str:
    return f"{100 * (ratio.mean - 1):+.2f} ± {100 * ratio.std:.2f} %"


def _value(spread: Spread, digits: int) -> str:
    return f"{spread.mean:.{digits}f} ± {spread.std:.{digits}f}"


def _table(head: Row, body: Sequence[Row]) -> str:
    align = ["---" if name in ("machine", "load", "policy") else "---:" for name in head]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, align, *body))
