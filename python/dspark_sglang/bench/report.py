"""Turns runs into a summary, a table for the terminal, a Markdown table and JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dspark_sglang.bench.metrics import (
    METRICS,
    RATIO_METRICS,
    RequestResult,
    merge_histograms,
    paired_ratios,
)
from dspark_sglang.bench.session import Run
from sgl_dspark.comparison import Spread, spread

SCHEMA = 1
COLUMNS = {
    "tok_s": "tok/s",
    "tok_s_user": "tok/s/user",
    "tok_s_user_e2e": "end to end",
    "ttft_ms": "TTFT ms",
    "mean_accept_len": "accept length",
}
DEFINITIONS = {
    "tok_s": "completion tokens of all requests / (last end - first start); closed loop",
    "tok_s_user": "mean over requests of (completion tokens - 1) / (end - first text): decoding alone",
    "tok_s_user_e2e": "mean over requests of completion tokens / (end - start): prefill and queueing included",
    "ttft_ms": "median over requests of first text - start",
    "mean_accept_len": (
        "1 + accepted drafts / verification rounds, bonus included, weighted by rounds; server's counters of each "
        "request; a last round that overruns max_tokens or a stop counts whole"
    ),
    "emitted_per_round": "(completion tokens - 1) / verification rounds: after what overran was cut off",
    "ratio": "arm / baseline in the same round at the same concurrency",
    "spread": "median (lowest-highest) over rounds",
    "same_text": "answers equal to the baseline's, character by character, over rounds",
}


def summarise(runs: Sequence[Run], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Reduce runs to one record per concurrency level.

    Parameters
    ----------
    runs : sequence of Run
    arms : sequence of str
        Names, the baseline first.

    Returns
    -------
    list of dict
        ``concurrency``; ``arms``: name to metric to `Spread` or None, and ``rounds``; ``ratios``: name (not the
        baseline) to metric to `Spread` or None; ``same_text``: name to [equal, compared].
    """
    levels = list(dict.fromkeys(run.concurrency for run in runs))
    return [_summarise_level([r for r in runs if r.concurrency == level], level, arms) for level in levels]


def _summarise_level(runs: Sequence[Run], level: int, arms: Sequence[str]) -> dict[str, Any]:
    by_arm = {name: {run.round: run for run in runs if run.arm == name} for name in arms}
    measured = {name: {r: run.metrics for r, run in rounds.items()} for name, rounds in by_arm.items()}

    def values(name: str, metric: str) -> dict[int, float]:
        return {r: value for r, m in measured[name].items() if (value := m[metric]) is not None}

    baseline, others = arms[0], arms[1:]
    return {
        "concurrency": level,
        "arms": {
            name: {
                "rounds": len(by_arm[name]),
                **{metric: spread([v for _, v in sorted(values(name, metric).items())]) for metric in METRICS},
            }
            for name in arms
        },
        "ratios": {
            name: {m: spread(paired_ratios(values(baseline, m), values(name, m))) for m in RATIO_METRICS}
            for name in others
        },
        "same_text": {name: _same_text(by_arm[baseline], by_arm[name]) for name in others},
    }


def _same_text(baseline: dict[int, Run], other: dict[int, Run]) -> list[int]:
    equal = compared = 0
    for round_ in baseline.keys() & other.keys():
        texts = {r.prompt: r.text for r in baseline[round_].results}
        shared = [r for r in other[round_].results if r.prompt in texts]
        compared += len(shared)
        equal += sum(r.text == texts[r.prompt] for r in shared)
    return [equal, compared]


def rows(summary: Sequence[dict[str, Any]], arms: Sequence[str], *, same_text: bool) -> list[list[str]]:
    """Lay the summary out, heading first; ``same_text`` adds the column of equal answers (greedy runs)."""
    heading = ["concurrency", "arm", *COLUMNS.values(), *(["same text"] if same_text else [])]
    table = [heading]
    for level in summary:
        first = str(level["concurrency"])
        for name in arms:
            cells = [cell(level["arms"][name][metric], metric) for metric in COLUMNS]
            equal = equal_cell(level["same_text"].get(name))
            table.append([first, name, *cells, *([equal] if same_text else [])])
            first = ""
        for name, ratios in level["ratios"].items():
            cells = [cell(ratios.get(metric), "ratio") for metric in COLUMNS]
            table.append([first, f"{name} / {arms[0]}", *cells, *([""] if same_text else [])])
    return table


def cell(value: Spread | None, metric: str) -> str:
    """Format a spread as ``median (lowest-highest)``, without the range if there is one value; "" for None."""
    if value is None:
        return ""
    digits = {"ratio": 2, "mean_accept_len": 2, "mean_verify_len": 2, "ttft_ms": 0}.get(metric, 1)
    sign = "x" if metric == "ratio" else ""
    middle = f"{value.median:.{digits}f}{sign}"
    return middle if len(value.values) == 1 else f"{middle} ({value.low:.{digits}f}-{value.high:.{digits}f})"


def equal_cell(counts: list[int] | None) -> str:
    """Format [equal, compared] answers; "" when none were compared."""
    return f"{counts[0]}/{counts[1]}" if counts and counts[1] else ""


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Format rows for a terminal: columns of one width, numbers to the right."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [c.ljust(w) if i == 1 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Format rows as a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    rule = "|" + "|".join("---" if i == 1 else "---:" for i in range(len(table[0]))) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def notes(header: dict[str, Any]) -> list[str]:
    """Say in a few lines what the table's figures are and what they were measured on."""
    settings, prompts, machine = header["settings"], header["prompts"], header["machine"]
    models = header["models"]
    pair = f"{models['target']['name']} with {models['draft']['name']}; " if models else ""
    accelerator = ", ".join(machine["gpus"]) or _count(header["threads"], "model thread")
    return [
        f"{pair}{machine['cpu']}, {accelerator}; {header['pinning']}.",
        f"Prompts: {prompts['source']} ({', '.join(prompts['categories'])}), sha256 {prompts['sha256'][:12]}; "
        f"temperature {settings['temperature']:g}, {_limits(settings)}"
        f"{', end of turn ignored' if settings['ignore_eos'] else ''}; {_count(settings['rounds'], 'round')}"
        f"{'' if header['complete'] else ' asked for, not completed'}.",
        "Median (lowest-highest) over rounds; ratios within a round. tok/s/user is decoding alone, end to end includes "
        "prefill; accept length is per verification round, bonus included.",
    ]


def _count(number: int | None, noun: str) -> str:
    return f"unknown {noun}s" if number is None else f"{number} {noun}{'' if number == 1 else 's'}"


def to_json(
    runs: Sequence[Run], arms: Sequence[str], header: dict[str, Any], summary: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Everything that was measured, with what it was measured on.

    Parameters
    ----------
    runs : sequence of Run
    arms : sequence of str
    header : dict
        Command, versions, machine, models, settings.
    summary : sequence of dict, optional
        In the place of :func:`summarise`'s.
    """
    return {
        "schema": SCHEMA,
        **header,
        "definitions": dict(DEFINITIONS),
        "arms": list(arms),
        "summary": [_plain(level) for level in (summarise(runs, arms) if summary is None else summary)],
        "runs": [_run_json(run) for run in runs],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return asdict(value)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _run_json(run: Run) -> dict[str, Any]:
    origin = min(r.start for r in run.results)
    return {
        "round": run.round,
        "turn": run.turn,
        "arm": run.arm,
        "concurrency": run.concurrency,
        "started_s": run.started_s,
        "wall_s": max(r.end for r in run.results) - origin,
        **({} if run.counts is None else {"counts": run.counts}),
        **run.metrics,
        "accept_histogram": merge_histograms([r.histogram for r in run.results]),
        "requests": [_request_json(r, origin) for r in run.results],
    }


def _request_json(result: RequestResult, origin: float) -> dict[str, Any]:
    return {
        "prompt": result.prompt,
        "start_s": result.start - origin,
        "ttft_s": result.first - result.start,
        "e2e_s": result.end - result.start,
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "finish_reason": result.finish_reason,
        "verify_rounds": result.verify_rounds,
        "correct_drafts": result.correct_drafts,
        "text_sha256": hashlib.sha256(result.text.encode()).hexdigest(),
    }


def _limits(settings: dict[str, Any]) -> str:
    """Describe how long answers may get."""
    most, spread = settings["max_tokens"], settings["length_spread"]
    return f"at most {round(most * (1 - spread))} to {most} tokens" if spread else f"at most {most} tokens"
