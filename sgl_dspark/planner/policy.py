"""One decision per decode step: draft or not, whom, and how much to verify; every fallback has a name and a count.

Shape letters: R requests, G = gamma slots.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.planner.capacity import Capacity, search
from sgl_dspark.planner.config import POLICIES, PlannerConfig, Policy
from sgl_dspark.planner.history import ConfidenceHistory, Lagged, SlotMean
from sgl_dspark.planner.profile import SurvivalProfile
from sgl_dspark.planner.skip import RowGate, StepGate
from sgl_dspark.planner.step import Decision, StepCosts, StepView
from sgl_dspark.planner.survival import survival_of

__all__ = ["POLICIES", "Decision", "Planner", "PlannerConfig", "Policy", "StepCosts", "StepView"]

Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROW_REASONS = ("no_history", "slot_reused", "stale_history", "nan_confidence")
STEP_REASONS = ("no_cost_model", "out_of_range", "burst", "calibration_drift", "low_gain", "probe", "no_room")


class Estimate(NamedTuple):
    """Expected survival of the step about to run, from what is two or more steps old.

    ``descending`` is float32 [R * G], largest first; ``latest`` is the same without smoothing; ``survival`` [R, G]
    (None if there is nothing new) and ``known`` [R] are the rows behind it.
    """

    descending: Floats32
    latest: Floats32
    survival: Floats32 | None
    known: Bools
    reason: str


class Planner:
    """Decide decode steps, one after the other.

    Parameters
    ----------
    config : PlannerConfig
    gamma : int
        G.
    num_slots : int, optional
        Request slots of the engine.

    Attributes
    ----------
    fallbacks : Counter
        By name: rows for ``ROW_REASONS``, steps for ``STEP_REASONS``.
    totals : Counter
        Steps ``decided``, ``drafted``, ``plain`` and ``probes``; rows ``rows_left_out`` and ``row_probes``.
    probe_cost_s : float
        Predicted seconds that probes have cost: what a plain step would have taken less for the same tokens.
    """

    def __init__(self, config: PlannerConfig, gamma: int, num_slots: int = 4096) -> None:
        self.gamma = gamma
        self.num_slots = num_slots
        self.fallbacks: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.probe_cost_s = 0.0
        self.history = ConfidenceHistory(num_slots, gamma, config.lag, config.max_age)
        self.slot_mean = SlotMean(gamma, config.prior_confidence)
        self._profile = SurvivalProfile(config.smoothing_rows)
        self._seen_step = -1
        self.configure(config)

    def configure(self, config: PlannerConfig) -> None:
        """Change the settings between two steps; what was learned is kept."""
        self.config = config
        self.history.lag, self.history.max_age = config.lag, config.max_age
        self._profile.smoothing_rows = config.smoothing_rows
        waits = config.probe_interval, config.probe_interval_max
        self._gate = StepGate(config.min_gain, config.keep_gain, *waits)
        self._rows = RowGate(self.num_slots, config.row_patience, *waits)

    def publish(self, slots: Ints, generations: Ints, logits: Floats32, step: int | None = None) -> None:
        """Hand over a step's confidences, under every policy; see ``ConfidenceHistory.publish``."""
        self.history.publish(slots, generations, logits, step)

    def decide(self, view: StepView) -> Decision:
        """Decide the next decode step; call once a step, before its launch.

        Parameters
        ----------
        view : StepView

        Returns
        -------
        Decision
            Never an exception for data that is missing, stale or broken: those have a ``reason`` and are counted.
        """
        step = self.history.advance()
        self.totals["decided"] += 1
        room = _total_room(view.room, len(view.slots), self.gamma)
        if not room:
            decision = Decision(step, draft=False, budget=0, reason="no_room" if len(view.slots) else "")
        elif self.config.policy != "adaptive":
            decision = self._on_device(view, step)
        elif view.costs is None:
            decision = self._without_costs(view, step, room)
        else:
            decision = self._adaptive(view, view.costs, step, room)
        self.totals["drafted" if decision.draft else "plain"] += 1
        if decision.reason and decision.reason not in ROW_REASONS:
            self.fallbacks[decision.reason] += 1
        return decision

    def _on_device(self, view: StepView, step: int) -> Decision:
        """Leave the lengths to the device: fixed, by threshold, or by Algorithm 1."""
        if self.config.policy == "early-stop" and view.costs is None:
            drafted = _with_room(view.room)
            return Decision(step, self.config.verify_drafts != 0, None, drafted, reason="no_cost_model")
        drafts = self.config.policy != "static" or self.config.verify_drafts != 0
        return Decision(step, draft=drafts, budget=None if drafts else 0, drafted=_with_room(view.room))

    def _without_costs(self, view: StepView, step: int, room: int) -> Decision:
        """Verify a fixed number per request: what trimming gains or costs is unknown."""
        drafts = self.gamma if self.config.verify_drafts is None else min(self.config.verify_drafts, self.gamma)
        budget = self._limited(min(drafts * len(view.slots), room))
        return Decision(step, budget > 0, budget, _with_room(view.room), reason="no_cost_model")

    def _limited(self, room: int) -> int:
        return room if self.config.max_budget is None else min(room, self.config.max_budget)

    def _adaptive(self, view: StepView, costs: StepCosts, step: int, room: int) -> Decision:
        """Search K, and draft only if that beats a plain step."""
        requests = len(view.slots)
        if costs.step_times.size != requests * self.gamma + 1 or not 0 < costs.plain_s < math.inf:
            return Decision(step, draft=False, budget=0, reason="out_of_range")
        estimate = self._estimate(view, step)
        limit = self._limited(room)
        best = search(estimate.descending, requests, costs.step_times, tiers=costs.tiers, limit=limit)
        # A NaN or a time that is not positive wins the argmax, so looking at the winner is enough.
        if not (best.step_time_s > 0 and best.rate < math.inf):
            return Decision(step, draft=False, budget=0, reason="out_of_range")
        gain = _gain(best, costs.plain_s, requests)
        draft, probe = self._whole_step(view, estimate, gain, limit)
        if not draft:
            return Decision(step, False, 0, None, float(requests), costs.plain_s, gain, "low_gain")
        drafted, step_time_s = _with_room(view.room), best.step_time_s
        if probe:
            self.totals["probes"] += 1
            self.probe_cost_s += best.step_time_s * max(-gain, 0.0)
        elif costs.draft_row_s > 0 and estimate.survival is not None and best.budget:
            chosen = self._choose_rows(view, estimate.survival, estimate.known, estimate.latest[best.budget - 1])
            if chosen is not None:
                drafted = chosen if drafted is None else chosen & drafted
        if drafted is not None:
            step_time_s -= costs.draft_row_s * int(np.count_nonzero(~drafted))
        reason = "probe" if probe else estimate.reason
        return Decision(step, True, best.budget, drafted, best.expected_tokens, step_time_s, gain, reason, probe)

    def _whole_step(self, view: StepView, estimate: Estimate, gain: float, limit: int) -> tuple[bool, bool]:
        """Ask the gate, unless nothing is known yet; see that a promising probe is repeated soon."""
        if not self.slot_mean.evidence_rows and view.calibration_ok:
            return True, False
        draft, probe = self._gate.step(gain)
        if not self._gate.drafting and estimate.survival is not None and view.costs is not None:
            costs = view.costs
            latest = search(estimate.latest, len(view.slots), costs.step_times, tiers=costs.tiers, limit=limit)
            if _gain(latest, costs.plain_s, len(view.slots)) > self.config.min_gain:
                self._gate.confirm()
        return draft, probe

    def _choose_rows(
        self, view: StepView, survival: Floats32, known: Bools, least_admitted: np.float32
    ) -> Bools | None:
        """Leave out requests whose first draft has been far below the least survival that would be admitted.

        Both sides come from the same readings, so that what the budget needs is always drafted.
        """
        out_of_reach = survival[:, 0] < self.config.row_margin * least_admitted
        out_of_reach &= known
        choice = self._rows.step(view.slots, view.generations, out_of_reach)
        if choice is None:
            return None
        self.totals["row_probes"] += choice.probes
        self.totals["rows_left_out"] += int(np.count_nonzero(~choice.drafted))
        return choice.drafted

    def _estimate(self, view: StepView, step: int) -> Estimate:
        """Predict this step's survival from publications that are at least ``lag`` steps old."""
        requests = len(view.slots)
        usable = requests if view.room is None else int(np.count_nonzero(view.room))
        lagged = self.history.lagged(view.slots, view.generations)
        fresh = lagged.settled_step > self._seen_step
        if not view.calibration_ok:
            row = self.slot_mean.value if view.empirical is None else view.empirical
            descending = _sorted(np.tile(row, (requests, 1)), view.room)
            return Estimate(descending, descending, None, lagged.known, "calibration_drift")
        if self._profile.known and not fresh:
            descending = self._remembered(usable, lagged.members_changed / requests)
            return Estimate(descending, descending, None, lagged.known, "")
        self._seen_step = lagged.settled_step
        self.fallbacks.update(lagged.counts)
        survival = survival_of(lagged.logits, _inverse_temperatures(view))
        if fresh:
            self.slot_mean.update(survival, lagged.known)
        unknown = ~lagged.known
        survival[unknown] = self.slot_mean.value
        latest = _sorted(survival, view.room)
        share = int(np.count_nonzero(unknown)) / requests
        average = latest
        if self.slot_mean.evidence_rows:
            average = self._profile.update(latest, usable, step, share)
        burst = share > self.config.burst_share
        reason = self._unknown_reason(lagged, share)
        return Estimate(latest if burst else average, latest, survival, lagged.known, reason)

    def _remembered(self, requests: int, strangers: float) -> Floats32:
        """Give the profile, with the mean in place of what it owes to requests that have left."""
        profile = self._profile.resized(requests * self.gamma)
        if not strangers:
            return profile
        return profile + np.float32(strangers) * (np.repeat(self.slot_mean.value, requests) - profile)

    def _unknown_reason(self, lagged: Lagged, share: float) -> str:
        """Name why rows are estimated by the mean, if that is worth a name."""
        if not share:
            return ""
        if share == 1:
            return max(lagged.counts, key=lambda name: lagged.counts[name])
        if share > self.config.burst_share:
            return "burst"
        return "nan_confidence" if "nan_confidence" in lagged.counts else ""


def _gain(best: Capacity, plain_s: float, requests: int) -> float:
    return best.rate * plain_s / requests - 1.0


def _sorted(survival: Floats32, room: Ints | None) -> Floats32:
    """Sort what can be used, largest first: without requests that have no room, 0 past the room of the others."""
    if room is not None and room.min() < survival.shape[1]:
        survival = np.where(np.arange(survival.shape[1]) < room[:, None], survival, np.float32(0.0))[room > 0]
    return np.sort(survival, axis=None)[::-1]


def _with_room(room: Ints | None) -> Bools | None:
    """Tell which requests can use a draft; None if all can."""
    return None if room is None or room.min() > 0 else room > 0


def _total_room(room: Ints | None, requests: int, gamma: int) -> int:
    return requests * gamma if room is None else int(room.sum())


def _inverse_temperatures(view: StepView) -> Floats32:
    table, sampled = view.inverse_temperatures, view.sampled
    if sampled is not None and sampled.any():
        table = table[1:] if sampled.all() else table.take(sampled, axis=0)
        return table
    return table[:1]
