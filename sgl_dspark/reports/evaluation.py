"""``dspark evaluate``: run the protocol, lay its results out as JSON, Markdown and plots."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from sgl_dspark.calibration.metrics import mean_ece
from sgl_dspark.calibration.store import KindCalibration
from sgl_dspark.data.template import ChatEncoder
from sgl_dspark.errors import ConfigError
from sgl_dspark.evaluation.identity import EVALUATION_FILE, describe
from sgl_dspark.evaluation.protocol import (
    Evaluation,
    Latency,
    SetResult,
    calibrate,
    decodings,
    load_sets,
    macro_means,
    measure_latency,
    to_json,
)
from sgl_dspark.evaluation.sides import load_side
from sgl_dspark.model.device import device_of
from sgl_dspark.model.provenance import other_target
from sgl_dspark.model.target import TargetModel
from sgl_dspark.reports.evaluation_plots import plot_conditional, plot_thresholds
from sgl_dspark.reports.reliability import save_reliability_diagram

Log = Callable[[str], None]


def evaluate(args: Namespace, log: Log) -> str:
    """Measure a draft as the options say and return the report; write it where ``--out`` says."""
    _check(args)
    target = TargetModel.from_dir(args.target, getattr(torch, args.dtype), device_of(args.device))
    side = load_side(args.draft, target, args.shortlist)
    about = describe(args) | {"threads": torch.get_num_threads()}
    made_for = other_target(args.draft, about["target_sha256"])
    if made_for is not None:
        log(f"warning: the draft was made for {made_for}; beside other weights it accepts less")
    if args.thresholds and not side.has_confidence:
        raise ConfigError("--thresholds needs a draft with a confidence head")
    encoder = ChatEncoder(args.target, target.config.eos_token_ids, args.chat_template_kwargs)
    sets = load_sets(args.prompts, encoder, args.limit)
    room = target.config.max_position_embeddings - side.gamma - 1
    wanted = args.max_positions or max(len(p) for s in sets for p in s.prompts) + args.max_new_tokens
    evaluation = Evaluation(target, side, args.rows, min(wanted, room), log)
    for decoding in decodings(args.temperatures, args.thresholds, args.max_new_tokens, args.seed):
        for prompts in sets:
            evaluation.measure(prompts, decoding)
    calibrations, panels = {}, {}
    for temperature in args.temperatures:
        fit, held_out = evaluation.records(temperature)
        found = calibrate(fit, held_out) if side.has_confidence else None
        if found is not None:
            calibrations[temperature] = found
            panels[f"T={temperature:g}"] = (found.map, held_out)
    latencies = [measure_latency(target, side, sets[0], rows) for rows in args.latency]
    text = render(evaluation.results, calibrations, latencies)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "evaluation.md").write_text(text, encoding="utf-8")
        plot_conditional(args.out / "conditional.png", _whole_blocks(evaluation.results))
        if args.thresholds:
            plot_thresholds(args.out / "thresholds.png", evaluation.results, args.temperatures[0])
        if panels:
            save_reliability_diagram(args.out / "reliability.png", panels)
        # Behind everything else and at once: who finds it finds a whole evaluation.
        whole = json.dumps(to_json(evaluation.results, calibrations, latencies, about), indent=2) + "\n"
        partial = args.out / (EVALUATION_FILE + ".partial")
        partial.write_text(whole, encoding="utf-8")
        partial.replace(args.out / EVALUATION_FILE)
        log(f"written to {args.out}")
    return text


def _check(args: Namespace) -> None:
    for option, values in (("--temperatures", args.temperatures), ("--thresholds", args.thresholds)):
        if any(value < 0 for value in values):
            raise ConfigError(f"{option} must not be negative")
    for option in ("rows", "max_new_tokens", "max_positions", "limit", "shortlist"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise ConfigError(f"--{option.replace('_', '-')} is {value}; it must be at least 1")
    if any(rows < 1 for rows in args.latency):
        raise ConfigError("--latency must be at least 1 row")
    if not isinstance(args.chat_template_kwargs, dict):
        raise ConfigError("--chat-template-kwargs must be a JSON object")
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        raise ConfigError(f"--out {args.out} is a file; name a folder")
    if not Path(args.draft).is_dir():
        raise ConfigError(f"there is no draft folder {args.draft}")


def _whole_blocks(results: Sequence[SetResult]) -> list[SetResult]:
    return [result for result in results if result.threshold <= 0]


def render(
    results: Sequence[SetResult], calibrations: Mapping[float, KindCalibration], latencies: Sequence[Latency]
) -> str:
    """Lay the results out as Markdown."""
    lines = [
        "| prompts | T | threshold | answers | tokens | rounds | accept length | verified | survival per slot "
        "| conditional per slot |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for r in results:
        survival = " ".join(f"{rate:.2f}" for rate in r.acceptance.survival)
        conditional = " ".join(f"{rate:.2f}" for rate in r.acceptance.conditional)
        lines.append(
            f"| {r.name} | {r.temperature:g} | {r.threshold:g} | {r.prompts} | {r.tokens} | {r.acceptance.rounds} "
            f"| {r.acceptance.mean_accept_len:.3f} | {r.acceptance.mean_verify_len:.2f} | {survival} | {conditional} |"
        )
    lines.append("")
    for mean in macro_means(results):
        where = f"T={mean['temperature']:g}, threshold {mean['threshold']:g}"
        lines.append(f"Macro-average accept length at {where}: {mean['mean_accept_len']:.3f}")
    for temperature, kind in calibrations.items():
        before, after = 100 * mean_ece(list(kind.before)), 100 * mean_ece(list(kind.after))
        floor = 100 * fmean(m.floor for m in kind.after if m.count)
        lines.append(
            f"Calibration at T={temperature:g} ({kind.method}, fitted on every other answer): "
            f"mean ECE of survival {before:.2f} % -> {after:.2f} % (chance alone: {floor:.2f} %)"
        )
    lines += [
        f"A round of {latency.rows} requests: draft {latency.draft_ms:.1f} ms, verification {latency.verify_ms:.1f} ms "
        f"({100 * latency.draft_share:.0f} % drafting)"
        for latency in latencies
    ]
    return "\n".join(lines) + "\n"
