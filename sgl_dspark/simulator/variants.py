"""Policies that the planner does not have, to compare it with."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.allocate import admit
from sgl_dspark.planner.capacity import choose_budget
from sgl_dspark.planner.prefix import early_stop
from sgl_dspark.planner.survival import survival_of
from sgl_dspark.simulator.acceptance import Drafts
from sgl_dspark.simulator.arrivals import at_least
from sgl_dspark.simulator.engine import Batch, Plan
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel, StepTimes


class LiteralLag:
    """Search K on the confidences of a step and apply it, as a number, ``lag`` steps later.

    Sec. 5.2 read literally: requests that came or went in between are not accounted for. K = 0 before there is any.

    Parameters
    ----------
    lag : int
        Steps between the search and its use, at least 1.
    gamma : int
        Drafts per block.
    belief : StepTimes
        What the search thinks that steps take.
    """

    def __init__(self, lag: int, gamma: int, belief: StepTimes) -> None:
        at_least("lag", lag, 1)
        self.gamma, self.belief = gamma, belief
        self._budgets = deque([0] * lag)

    def plan(self, batch: Batch, drafts: Drafts) -> Plan:
        """Apply the oldest K, and put this step's in the queue."""
        requests = len(batch.slots)
        survival = survival_of(drafts.logits, np.ones(self.gamma, np.float32))
        times = self.belief.step_times(requests, self.gamma, batch.context_tokens)
        lens = admit(survival, self._budgets.popleft())
        self._budgets.append(choose_budget(survival, times, tiers=self.belief.tiers).budget)
        return Plan(lens, requests)


class HullStop:
    """Run Algorithm 1 on the convex hull of the staircase, then fill the tier that it ends in.

    On a convex step time the objective has one peak, so stopping early finds it. Whether the draft of rank k is
    verified depends on ranks 1..k alone: either the search passes k, or it stops before k and within the same tier.
    So the current confidences may be used, as in Algorithm 1.

    Parameters
    ----------
    gamma : int
        Drafts per block.
    belief : StepTimes
        A ``StepTimeModel``: its tiers are what is filled.
    """

    def __init__(self, gamma: int, belief: StepTimes) -> None:
        self.gamma, self.hull, self.tiers = gamma, convex_hull(belief), belief.tiers

    def plan(self, batch: Batch, drafts: Drafts) -> Plan:
        """Decide from this step's confidences."""
        requests = len(batch.slots)
        survival = survival_of(drafts.logits, np.ones(self.gamma, np.float32))
        times = self.hull.step_times(requests, self.gamma, batch.context_tokens)
        capacity, lens = early_stop(survival, times)
        if self.tiers is None:
            return Plan(lens, requests)
        at = int(np.searchsorted(self.tiers, requests + capacity.budget))
        if at == len(self.tiers):
            return Plan(lens, requests)
        return Plan(admit(survival, int(self.tiers[at]) - requests), requests)


def convex_hull(model: StepTimes) -> StepTimeModel:
    """Replace the verification curve by its lower convex hull, without stairs.

    Raises
    ------
    ConfigError
        If ``model`` is not a ``StepTimeModel``.
    """
    if not isinstance(model, StepTimeModel):
        raise ConfigError(f"belief: {type(model).__name__} has no verification curve; give a StepTimeModel")
    hull: list[tuple[int, float]] = []
    for point in zip(model.verify.sizes.tolist(), model.verify.seconds.tolist(), strict=True):
        while len(hull) > 1 and not _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    sizes, seconds = zip(*hull, strict=True)
    return replace(model, verify=Curve(sizes, seconds))


def _turns_up(first: tuple[int, float], middle: tuple[int, float], last: tuple[int, float]) -> bool:
    before = (middle[1] - first[1]) / (middle[0] - first[0])
    return (last[1] - middle[1]) / (last[0] - middle[0]) > before
