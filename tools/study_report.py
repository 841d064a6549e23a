"""Tables and plots of the training study, from what `dspark evaluate` and `dspark train` wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sgl_dspark.reports.evaluation_plots import plot_lines
from sgl_dspark.training.journal import read_metrics


@dataclass(frozen=True)
class About:
    """What a report is about; no steps: the shipped draft. ``made``: the data's size where it is not the pair's."""

    name: str
    title: str
    reference: str
    pair: str
    steps: int
    seeds: tuple[int, ...]
    answers: int
    made: str = ""


@dataclass(frozen=True)
class Result:
    """One evaluation of one trained draft."""

    arm: str
    seed: int
    suffix: str
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]

    @classmethod
    def read(cls, arm: str, seed: int, suffix: str, folder: Path, run: Path) -> Result:
        """Read an evaluation's JSON and its run's curve."""
        evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
        return cls(arm, seed, suffix, evaluation, read_metrics(run / "metrics.jsonl"))

    def rows(self, temperature: float = 1.0, threshold: float = 0.0) -> dict[str, dict[str, Any]]:
        """Results of the prompt sets at one temperature and threshold."""
        rows = self.evaluation["results"]
        return {r["name"]: r for r in rows if r["temperature"] == temperature and r["threshold"] == threshold}

    def accept_len(self, name: str, temperature: float = 1.0, threshold: float = 0.0) -> float:
        """Mean accept length of one set."""
        return float(self.rows(temperature, threshold)[name]["acceptance"]["mean_accept_len"])

    def macro(self, temperature: float = 1.0, threshold: float = 0.0) -> float:
        """Plain mean of the sets' accept lengths."""
        return fmean(self.accept_len(name, temperature, threshold) for name in self.rows(temperature, threshold))

    @property
    def minutes(self) -> float:
        """Training time."""
        return float(max((m["seconds"] for m in self.metrics), default=0.0)) / 60


# Ends the name of a pass that is there for its times.
TIMED = "-latency"
Report = Callable[[About, Sequence[Result], Path], Path]


def table1(about: About, results: Sequence[Result], out: Path) -> Path:
    """Accept length per set, conditional acceptance per slot, cost of a draft, and the training curves."""
    results, timed = _parts(results)
    sets, stem = list(results[0].rows()), _stem(about)
    lines = _head(about)
    lines += _table(
        ["draft", "seed", *sets, "macro mean", "minutes"],
        [
            [r.arm, r.seed, *(f"{r.accept_len(s):.3f}" for s in sets), f"{r.macro():.3f}", f"{r.minutes:.0f}"]
            for r in results
        ],
    )
    means = {arm: fmean(r.macro() for r in results if r.arm == arm) for arm in _arms(results)}
    lines += [
        "",
        *(f"DSpark over {arm}: {means['dspark'] / mean - 1:+.1%}" for arm, mean in means.items() if arm != "dspark"),
    ]
    curves = {}
    for arm in _arms(results):
        for name in sets:
            rates = [r.rows()[name]["acceptance"]["conditional"] for r in results if r.arm == arm]
            curves[f"{arm}, {name}"] = (range(1, len(rates[0]) + 1), [fmean(slot) for slot in zip(*rates, strict=True)])
    lines += ["", "What a round costs on this machine, median milliseconds, mean of the seeds:", "", *_costs(timed)]
    lines += ["", "Acceptance of each slot given an accepted prefix, mean of the seeds:", ""]
    lines += _table(
        ["draft, set", *(str(slot) for slot in range(1, len(next(iter(curves.values()))[1]) + 1))],
        [[name, *(f"{rate:.2f}" for rate in rates)] for name, (_, rates) in curves.items()],
    )
    plot_lines(out / f"{stem}_conditional.png", curves, "slot", "acceptance given an accepted prefix")
    return _write(
        about, out, [*lines, "", f"![acceptance per slot]({stem}_conditional.png)", *_progress(results, stem, out)]
    )


def _costs(timed: Sequence[Result]) -> list[str]:
    batches = [x["rows"] for x in timed[0].evaluation["latency"]]
    names = ["draft", *(f"{what} {n}" for n in batches for what in ("drafting for", "whole round of"))]
    rows = []
    for arm in _arms(timed):
        mine = [r for r in timed if r.arm == arm]
        times = [fmean(part(r, n) for r in mine) for n in batches for part in (_draft_ms, _round_ms)]
        rows.append([arm, *(f"{ms:.1f}" for ms in times)])
    return _table(names, rows)


def shipped(about: About, results: Sequence[Result], out: Path) -> Path:
    """Accept length per set and temperature, and how it grew with tokens and time."""
    (result,) = results
    rows = []
    for row in result.evaluation["results"]:
        found = row["acceptance"]
        rates = " ".join(f"{rate:.2f}" for rate in found["conditional"])
        rows.append([row["name"], f"{row['temperature']:g}", found["rounds"], f"{found['mean_accept_len']:.3f}", rates])
    names = ["prompts", "temperature", "rounds", "accept length", "acceptance per slot, given the prefix"]
    held_out = [m for m in result.metrics if m["name"] == "held_out"]
    learnt = [
        [m["step"], f"{m['tokens'] / 1e6:.1f}", f"{m['seconds'] / 60:.0f}", f"{m['expected_accept_len']:.3f}"]
        for m in held_out
    ]
    lines = [
        *_head(about),
        *_table(names, rows),
        "",
        "Expected accept length at temperature 1 on the held-out answers, teacher-forced, while it was trained:",
        "",
        *_table(["step", "supervised tokens, millions", "minutes", "expected accept length"], learnt),
    ]
    return _write(about, out, [*lines, *_progress(results, _stem(about), out)])


def _progress(results: Sequence[Result], stem: str, out: Path) -> list[str]:
    """Draw the expected accept length of held-out answers against tokens and against time."""
    lines = []
    for axis, unit, label in (("tokens", 1e6, "supervised tokens, millions"), ("seconds", 60, "minutes of one core")):
        curves = {}
        for result in results:
            held_out = [m for m in result.metrics if m["name"] == "held_out"]
            if held_out:
                values = [m["expected_accept_len"] for m in held_out]
                curves[f"{result.arm}, seed {result.seed}"] = ([m[axis] / unit for m in held_out], values)
        if curves:
            path = out / f"{stem}_{axis}.png"
            plot_lines(path, curves, label, "expected accept length, held-out")
            lines += ["", f"![accept length against {axis}]({path.name})"]
    return lines


def per_arm(about: About, results: Sequence[Result], out: Path) -> Path:
    """Accept length of every arm, mean of the seeds."""
    return _write(about, out, [*_head(about), *_means(results)])


def length(about: About, results: Sequence[Result], out: Path) -> Path:
    """Accept length and round latency against draft length, by head."""
    rows, curves = [], {}
    results, timed = _parts(results)
    batches = [x["rows"] for x in timed[0].evaluation["latency"]]
    for arm in _arms(results):
        mine = [r for r in results if r.arm == arm]
        head, gamma = arm.split("-gamma-")
        macro = fmean(r.macro() for r in mine)
        times = [fmean(_round_ms(r, n) for r in timed if r.arm == arm) for n in batches]
        spread = _spread([r.macro() for r in mine])
        rows.append([head, gamma, f"{macro:.3f}", spread, *(f"{ms:.1f}" for ms in times)])
        at, values = curves.setdefault(head, ([], []))
        at.append(int(gamma))
        values.append(macro)
    lines = [
        *_head(about),
        *_table(["head", "drafts", "accept length", "between seeds", *(f"round of {b}, ms" for b in batches)], rows),
    ]
    plot_lines(out / f"{_stem(about)}.png", curves, "drafts per block", "accept length")
    return _write(about, out, [*lines, "", f"![accept length]({_stem(about)}.png)"])


def thresholds(about: About, results: Sequence[Result], out: Path) -> Path:
    """Accept and verify length against the confidence threshold."""
    keys = sorted({(r["name"], r["threshold"]) for r in results[0].evaluation["results"]})
    rows, curves = [], {}
    for name, threshold in keys:
        found = [r.rows(threshold=threshold)[name]["acceptance"] for r in results]
        accepted = fmean(a["mean_accept_len"] for a in found)
        verified = fmean(a["mean_verify_len"] for a in found)
        spread = _spread([a["mean_accept_len"] for a in found])
        lengths = (f"{accepted:.3f}", spread, f"{verified:.2f}", f"{accepted / verified:.3f}")
        rows.append([name, f"{threshold:g}", *lengths])
        at, values = curves.setdefault(name, ([], []))
        at.append(threshold)
        values.append(accepted / verified)
    lines = [
        *_head(about),
        *_table(["prompts", "threshold", "accept length", "between seeds", "verify length", "rate"], rows),
    ]
    plot_lines(out / f"{_stem(about)}.png", curves, "confidence threshold", "accepted / verified")
    return _write(about, out, [*lines, "", f"![acceptance rate]({_stem(about)}.png)"])


def calibration(about: About, results: Sequence[Result], out: Path) -> Path:
    """ECE of survival before and after calibration, by temperature."""
    rows = []
    for result in results:
        for temperature, found in result.evaluation["calibration"].items():
            scale = " ".join(f"{t:.2f}" for t in found["temperatures"])
            chance = fmean(slot["floor"] for slot in found["after"] if slot["count"])
            ece = [f"{100 * x:.2f} %" for x in (found["mean_ece_before"], found["mean_ece_after"], chance)]
            rows.append([result.seed, temperature, found["method"], *ece, scale])
    names = ["seed", "temperature", "method", "mean ECE before", "after", "by chance alone", "fitted temperatures"]
    return _write(about, out, [*_head(about), *_table(names, rows)])


def shortlist(about: About, results: Sequence[Result], out: Path) -> Path:
    """Accept length and draft time against the number of candidates."""
    rows = []
    results, timed = _parts(results)
    batches = [x["rows"] for x in timed[0].evaluation["latency"]]
    for suffix in dict.fromkeys(r.suffix for r in results):
        mine = [r for r in results if r.suffix == suffix]
        times = [fmean(_draft_ms(r, n) for r in timed if r.suffix == suffix + TIMED) for n in batches]
        size = suffix.rsplit("-", 1)[1] if "-" in suffix else "all"
        accepted = [r.macro() for r in mine]
        rows.append([size, f"{fmean(accepted):.3f}", _spread(accepted), *(f"{ms:.1f}" for ms in times)])
    names = ["candidates", "accept length", "between seeds", *(f"drafting for {b}, ms" for b in batches)]
    return _write(about, out, [*_head(about), *_table(names, rows)])


def _means(results: Sequence[Result]) -> list[str]:
    sets = list(results[0].rows())
    rows = []
    for arm in _arms(results):
        mine = [r for r in results if r.arm == arm]
        spread = _spread([r.macro() for r in mine])
        values = (f"{fmean(r.accept_len(s) for r in mine):.3f}" for s in sets)
        minutes = fmean(r.minutes for r in mine)
        rows.append([arm, *values, f"{fmean(r.macro() for r in mine):.3f}", spread, f"{minutes:.0f}"])
    return _table(["draft", *sets, "macro mean", "between seeds", "minutes"], rows)


def _spread(values: Sequence[float]) -> str:
    return f"{max(values) - min(values):.3f}"


def _parts(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Divide evaluations into those of what is accepted and those of what it costs."""
    return [r for r in results if not r.suffix.endswith(TIMED)], [r for r in results if r.suffix.endswith(TIMED)]


def _arms(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(r.arm for r in results))


def _round_ms(result: Result, rows: int) -> float:
    found = next(x for x in result.evaluation["latency"] if x["rows"] == rows)
    return float(found["draft_ms"] + found["verify_ms"])


def _draft_ms(result: Result, rows: int) -> float:
    return float(next(x for x in result.evaluation["latency"] if x["rows"] == rows)["draft_ms"])


def _stem(about: About) -> str:
    return f"training_{about.name}"


def _head(about: About) -> list[str]:
    target = {"smollm2": "SmolLM2-135M-Instruct", "fixture": "the test fixture's target (2.6 million parameters)"}
    made = f"{about.steps:,} optimiser steps," if about.steps else "The draft in checkpoints/,"
    of = f"Trained on {about.answers:,} answers of the target." if about.steps else "Seeds are of the sampling."
    return [
        f"# {about.title}",
        "",
        f"Corresponds to: {about.reference}. Target: {target[about.pair]}. {made}",
        f"seed {' and '.join(map(str, about.seeds))}; temperature 1 unless said, held-out prompts, mean over rounds,",
        f"bonus included. {of} Made by:",
        "",
        "```",
        f"python tools/study.py {about.name}{about.made}",
        "```",
        "",
    ]


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def _write(about: About, out: Path, lines: Sequence[str]) -> Path:
    path = out / f"{_stem(about)}.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
