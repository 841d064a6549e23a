"""Reads ``metrics.toml``, the one place where metrics are defined, and says which values their labels take.

Importable without SGLang and torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sgl_dspark.calibration.online import SERVED_KINDS
from sgl_dspark.planner.config import POLICIES
from sgl_dspark.planner.policy import ROW_REASONS, STEP_REASONS

Kind = Literal["counter", "gauge", "histogram"]

# Tokens per second per user at which service is judged; 35/50 and 80/120 are the anchors of the paper (Sec. 5.4).
DEFAULT_SLA = (20.0, 35.0, 50.0, 80.0, 120.0)
LEDGER_REASONS = ("answer_not_followed", "confidence_late", "step_without_verdict", "verdict_without_step")
# Why a step ran outside captured graphs on CUDA.
GRAPH_REASONS = (
    "device_path_failed",
    "draft_graph_adjusted",
    "draft_graph_failed",
    "draft_graph_memory",
    "draft_graph_pages",
    "draft_graph_size",
    "target_graph_failed",
    "target_graph_memory",
    "target_graph_pages",
    "target_graph_size",
)
# Counted for requests, so that their share is of rounds; all others are counted once a step.
ROUND_REASONS = (*ROW_REASONS, "answer_not_followed")
# Requests in one decode step, by powers of two: the upper end of each class.
LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BINS = 10
# Their edges depend on the length of a block: one bucket per token.
LENGTHS = ("dspark_verify_length_tokens", "dspark_accept_length_tokens")
USER_SPEED = "dspark_user_tokens_per_second"

# Values of each label that do not depend on the model; `slot` and `sla` are settled at start-up.
LABEL_VALUES: dict[str, tuple[str, ...]] = {
    "policy": tuple(POLICIES),
    "mode": ("drafted", "plain"),
    "source": ("verify", "prefill"),
    "reason": (*ROW_REASONS, *STEP_REASONS, *LEDGER_REASONS, *GRAPH_REASONS, "other"),
    "finish": ("stop", "length", "abort"),
    "why": ("plain_step", "left_out"),
    "phase": ("plan", "draft", "rank", "verify", "rest"),
    "probe": ("full_length", "step", "request"),
    "bin": tuple(f"{i / BINS:.1f}" for i in range(BINS)),
    "load": (*(str(n) for n in LOADS), "more"),
    "met": ("yes", "no"),
    "kind": SERVED_KINDS,
}


@dataclass(frozen=True)
class Metric:
    """One exported figure; the fields are those of ``metrics.toml``, which explains them."""

    group: str
    name: str
    kind: Kind
    unit: str
    help: str
    formula: str
    labels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    free: bool = False


def _read() -> tuple[Metric, ...]:
    document = tomllib.loads((Path(__file__).parent / "metrics.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = document["metric"]
    for fields in found:
        for name in ("labels", "edges"):
            fields[name] = tuple(fields.get(name, ()))
    return tuple(Metric(**fields) for fields in found)


METRICS: tuple[Metric, ...] = _read()
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}


def label_values(gamma: int, sla: Sequence[float]) -> dict[str, tuple[str, ...]]:
    """Return every value of every label, those that depend on the model included."""
    return {
        **LABEL_VALUES,
        "slot": tuple(str(j) for j in range(gamma)),
        "sla": tuple(anchor_label(anchor) for anchor in sla),
    }


def edges_of(metric: Metric, gamma: int, sla: Sequence[float]) -> tuple[float, ...]:
    """Return a histogram's upper bucket edges, without infinity.

    The edges of tokens per second hold every anchor, so that no quantile is guessed across one.
    """
    if metric.name in LENGTHS:
        return tuple(float(n) for n in range(1, gamma + 2))
    if metric.name == USER_SPEED:
        return tuple(sorted({*metric.edges, *map(float, sla)}))
    return metric.edges


def anchor_label(anchor: float) -> str:
    """Write an anchor as its label: 80, 12.5."""
    return f"{anchor:g}"
