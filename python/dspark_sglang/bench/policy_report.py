"""What ``dspark bench --policies`` adds to the report: verify lengths, and adaptive against the best other arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspark_sglang.bench.metrics import paired_ratios
from dspark_sglang.bench.policies import mean_verify_len
from dspark_sglang.bench.report import cell, equal_cell, summarise
from dspark_sglang.bench.session import Run
from sgl_dspark.comparison import ADAPTIVE, Spread, spread

COLUMNS = {
    "tok_s": "tok/s",
    "tok_s_user": "tok/s/user",
    "mean_verify_len": "verify length",
    "mean_accept_len": "accept length",
}
DEFINITIONS = {
    "mean_verify_len": (
        "tokens verified per request and step, anchor included: difference of verify_tokens / rounds in the server's "
        "/dspark/state; a step without drafting counts 1 per request"
    ),
    "plain_step_share": "steps without drafting / decode steps, from the same counts, all rounds together",
    "relative_spread": "(highest - lowest) / median of tok_s over rounds",
    "adaptive": "tok_s of adaptive / tok_s of the arm with the highest median among the others, in the same round",
}
NOTE = (
    "Policies take turns on one server, in an order that moves on each round, each after a warm-up at its level. "
    "Verify length is per request and step, anchor included."
)


def summarise_policies(runs: Sequence[Run], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Extend `report.summarise` by verify lengths, relative spread and the adaptive policy's ratio.

    Parameters
    ----------
    runs : sequence of Run
    arms : sequence of str
        Names, the baseline first.

    Returns
    -------
    list of dict
        As `report.summarise`; each arm also has ``mean_verify_len``, ``plain_step_share`` and ``relative_spread``.
        Where the adaptive policy was measured the level has ``adaptive``: ``best_other`` (a name) and ``ratio``
        (`Spread` over rounds).
    """
    levels = summarise(runs, arms)
    for level in levels:
        here = [run for run in runs if run.concurrency == level["concurrency"]]
        for name in arms:
            lengths = [mean_verify_len(run.counts) for run in sorted(here, key=lambda r: r.round) if run.arm == name]
            found = level["arms"][name]
            found["mean_verify_len"] = spread([length for length in lengths if length is not None])
            found["plain_step_share"] = _plain_share([run.counts or {} for run in here if run.arm == name])
            found["relative_spread"] = _relative(found["tok_s"])
        others = [name for name in arms if name != ADAPTIVE and level["arms"][name]["tok_s"]]
        if ADAPTIVE in arms and level["arms"][ADAPTIVE]["tok_s"] and others:
            best = max(others, key=lambda name: level["arms"][name]["tok_s"].median)
            ratios = paired_ratios(_throughput(here, best), _throughput(here, ADAPTIVE))
            level["adaptive"] = {"best_other": best, "ratio": spread(ratios)}
    return levels


def _plain_share(counts: Sequence[dict[str, float]]) -> float | None:
    steps = sum(found.get("steps", 0) for found in counts)
    return sum(found.get("plain_steps", 0) for found in counts) / steps if steps else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _relative(value: Spread | None) -> float | None:
    return None if value is None else (value.high - value.low) / value.median


def _throughput(runs: Sequence[Run], arm: str) -> dict[int, float]:
    return {run.round: value for run in runs if run.arm == arm and (value := run.metrics["tok_s"]) is not None}


def policy_rows(levels: Sequence[dict[str, Any]], arms: Sequence[str], *, same_text: bool) -> list[list[str]]:
    """Lay the summary out, heading first: a row per arm, and one for the adaptive policy against the best other."""
    tail = ["same text"] if same_text else []
    table = [["concurrency", "arm", *COLUMNS.values(), "plain steps", "spread", f"x {arms[0]}", *tail]]
    for level in levels:
        first = str(level["concurrency"])
        for name in arms:
            found = level["arms"][name]
            ratios = level["ratios"].get(name, {})
            cells = [cell(found[metric], metric) for metric in COLUMNS]
            cells += [_percent(found["plain_step_share"]), _percent(found["relative_spread"])]
            cells.append(cell(ratios.get("tok_s"), "ratio"))
            table.append([first, name, *cells, *([equal_cell(level["same_text"].get(name))] if same_text else [])])
            first = ""
        if "adaptive" in level:
            ratio = cell(level["adaptive"]["ratio"], "ratio")
            blanks = [""] * (len(table[0]) - 3)
            table.append([first, f"{ADAPTIVE} / best other ({level['adaptive']['best_other']})", ratio, *blanks])
    return table
