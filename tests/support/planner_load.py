"""A closed load with synthetic calibrated confidences, under the planner or a fixed length; tokens per second come out.

Requests differ in difficulty and last a geometric number of steps; a request's confidences move from step to step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.planner.allocate import admit
from sgl_dspark.planner.policy import Planner, PlannerConfig, StepCosts, StepView
from sgl_dspark.planner.survival import survival_of

GAMMA = 7
ONES = np.ones((2, GAMMA), dtype=np.float32)


@dataclass(frozen=True)
class Load:
    """Logit = difficulty (mean, spread between requests) + spread * a process of the given correlation."""

    requests: int
    mean: float = 1.2
    spread_between: float = 1.0
    spread: float = 1.8
    correlation: float = 0.3
    life_steps: float = 60.0
    per_token_s: float = 0.05
    draft_s: float = 0.15
    draft_row_s: float = 0.025
    staircase: int = 1

    def costs(self) -> StepCosts:
        tokens = self.requests + np.arange(self.requests * GAMMA + 1)
        verify_s = 1.0 + self.per_token_s * self.staircase * np.ceil(tokens / self.staircase)
        drafting_s = self.draft_s + self.draft_row_s * self.requests
        return StepCosts(float(verify_s[0]), verify_s + drafting_s, self.draft_row_s)

    def rounds(self, steps: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]]:
        """Give generations, logits and the correct drafts of full blocks, step by step, the same for every policy."""
        rng, shape = np.random.default_rng(0), (self.requests, GAMMA)
        generations = np.zeros(self.requests, dtype=np.int64)
        difficulty = rng.normal(self.mean, self.spread_between, self.requests)
        process = rng.normal(size=shape)
        for _ in range(steps):
            replaced = rng.random(self.requests) < 1 / self.life_steps
            generations = generations + replaced
            difficulty = np.where(replaced, rng.normal(self.mean, self.spread_between, self.requests), difficulty)
            news = rng.normal(size=shape)
            process = self.correlation * process + np.sqrt(1 - self.correlation**2) * news
            logits = (difficulty[:, None] + self.spread * process).astype(np.float32)
            accepted = rng.random(shape) < 1 / (1 + np.exp(-logits))
            yield generations, logits, np.cumprod(accepted, axis=1).sum(axis=1)


def fixed_rate(load: Load, drafts: int, steps: int) -> float:
    """Tokens per second when every request verifies ``drafts``; 0 does not draft."""
    costs = load.costs()
    step_time_s = costs.step_times[drafts * load.requests] if drafts else costs.plain_s
    tokens = sum(load.requests + int(np.minimum(correct, drafts).sum()) for _, _, correct in load.rounds(steps))
    return float(tokens / (steps * step_time_s))


def planned_rate(load: Load, config: PlannerConfig, steps: int) -> tuple[float, float]:
    """Tokens per second under the planner, and tokens that its drafted steps expected over those they brought."""
    planner, costs, slots = Planner(config, GAMMA, load.requests), load.costs(), np.arange(load.requests)
    seconds, tokens, expected, brought = 0.0, 0, 0.0, 0
    for generations, logits, correct in load.rounds(steps):
        decision = planner.decide(StepView(slots, generations, costs, ONES))
        if not decision.draft:
            seconds, tokens = seconds + costs.plain_s, tokens + load.requests
            continue
        drafted = np.ones(load.requests, dtype=np.bool_) if decision.drafted is None else decision.drafted
        assert decision.budget is not None
        lens = admit(survival_of(logits, ONES[0]) * drafted[:, None], decision.budget)
        emitted = load.requests + int(np.minimum(correct, lens).sum())
        seconds += costs.step_times[lens.sum()] - costs.draft_row_s * np.count_nonzero(~drafted)
        tokens, expected, brought = tokens + emitted, expected + decision.expected_tokens, brought + emitted
        planner.publish(slots[drafted], generations[drafted], logits[drafted], decision.step)
    return float(tokens / seconds), expected / max(brought, 1)
