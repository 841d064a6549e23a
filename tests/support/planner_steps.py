"""Steps to drive a planner with: views, affine costs, and a loop that publishes constant confidences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.planner.policy import Decision, Planner, StepCosts, StepView

GAMMA = 5
ONES = np.ones((2, GAMMA), dtype=np.float32)


def ids(requests: int) -> NDArray[np.int64]:
    return np.arange(requests, dtype=np.int64)


def logits_for(requests: int, value: float) -> NDArray[np.float32]:
    return np.full((requests, GAMMA), value, dtype=np.float32)


def affine(requests: int, *, per_token_s: float = 0.05, draft_s: float = 0.2, draft_row_s: float = 0.0) -> StepCosts:
    """One second a step and some for each token; ``draft_s`` for drafting, ``draft_row_s`` more for each request."""
    plain_s = 1.0 + per_token_s * requests
    drafting_s = draft_s + draft_row_s * requests
    return StepCosts(plain_s, plain_s + drafting_s + per_token_s * np.arange(requests * GAMMA + 1), draft_row_s)


def view(requests: int, costs: StepCosts | None, generation: int = 0) -> StepView:
    return StepView(ids(requests), np.full(requests, generation, dtype=np.int64), costs, ONES)


def drive(planner: Planner, step: StepView, logits: float | NDArray[np.float32], steps: int) -> list[Decision]:
    """Decide the same step again and again, publishing ``logits`` for whatever was drafted."""
    requests = len(step.slots)
    rows = logits_for(requests, logits) if isinstance(logits, float) else logits
    decisions = []
    for _ in range(steps):
        decision = planner.decide(step)
        decisions.append(decision)
        if decision.draft:
            drafted = np.ones(requests, dtype=np.bool_) if decision.drafted is None else decision.drafted
            planner.publish(step.slots[drafted], step.generations[drafted], rows[drafted], decision.step)
    return decisions
