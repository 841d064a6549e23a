"""What an evaluation was made of, and whether one on disk is of what is asked for."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sgl_dspark.calibration.store import draft_sha256
from sgl_dspark.config import DrafterConfig
from sgl_dspark.data.cache import weights_sha256
from sgl_dspark.data.prompts import PromptRecord, read_prompts

EVALUATION_FILE = "evaluation.json"
# Names say where something lay, and results depend on neither; times are compared by nobody but their reader.
_FREE = frozenset({"target", "draft", "rows", "threads"})


@dataclass(frozen=True)
class Comparison:
    """An evaluation on disk beside what is asked for.

    Attributes
    ----------
    differing : tuple of str
        Fields in which it is of something else.
    unrecorded : tuple of str
        Fields that it does not say, as it was made by an earlier release.
    """

    differing: tuple[str, ...]
    unrecorded: tuple[str, ...]


def describe(args: Namespace) -> dict[str, Any]:
    """Return what `dspark evaluate` with these options measures: the same on every machine, but for names.

    Raises
    ------
    DsparkError
        If target, draft or prompts cannot be read.
    """
    return {
        "target": args.target.name,
        "target_sha256": weights_sha256(args.target),
        "draft": args.draft.name,
        "draft_sha256": draft_sha256(args.draft),
        "gamma": DrafterConfig.from_dir(args.draft).gamma,
        "prompts": {file.stem: _prompts_sha256(read_prompts(file, args.limit)) for file in args.prompts},
        "seed": args.seed,
        "max_new_tokens": args.max_new_tokens,
        "max_positions": args.max_positions,
        "rows": args.rows,
        "shortlist": args.shortlist,
        "template_options": args.chat_template_kwargs,
        "dtype": args.dtype,
    }


def compare(found: Mapping[str, Any], args: Namespace) -> Comparison:
    """Compare an ``evaluation.json`` with what `dspark evaluate` would measure with these options."""
    about, wanted = found["about"], describe(args)
    unrecorded = tuple(name for name in wanted if name not in about)
    differing = [n for n in wanted if n in about and n not in _FREE and about[n] != wanted[n]]
    passes = {(t, 0.0) for t in args.temperatures} | {(args.temperatures[0], t) for t in args.thresholds if t > 0}
    if {(r["temperature"], r["threshold"]) for r in found["results"]} != passes:
        differing.append("temperatures or thresholds")
    sizes = {file.stem: len(read_prompts(file, args.limit)) for file in args.prompts}
    if {r["name"]: r["prompts"] + r["skipped"] for r in found["results"]} != sizes:
        differing.append("number of prompts")
    if [x["rows"] for x in found["latency"]] != args.latency:
        differing.append("latency")
    return Comparison(tuple(differing), unrecorded)


def _prompts_sha256(records: list[PromptRecord]) -> str:
    return hashlib.sha256(" ".join(record.id for record in records).encode()).hexdigest()
