"""The policies that are compared: the serving planner itself, driven as the serving worker drives it.

Letters: R running requests, G = gamma slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sgl_dspark.planner.allocate import admit, threshold_lens
from sgl_dspark.planner.policy import Decision, Planner, PlannerConfig, StepCosts, StepView
from sgl_dspark.planner.prefix import early_stop
from sgl_dspark.planner.survival import survival_of
from sgl_dspark.simulator.acceptance import F32, Drafts
from sgl_dspark.simulator.arrivals import Ints
from sgl_dspark.simulator.engine import Batch, Controller, Plan
from sgl_dspark.sps.model import StepTimes

NO_SPEC = "no-spec"


@dataclass(frozen=True)
class Arm:
    """One line of a comparison.

    Attributes
    ----------
    name : str
        Shown in results.
    config : PlannerConfig or None
        None never drafts, unless there is a variant.
    belief : StepTimes or None
        The step-time model that the planner gets; None: the machine's own.
    confidence_scale : float
        The planner multiplies confidence logits by it: 1 is calibrated where the acceptance is, more is overconfident.
    variant : callable or None
        Makes the policy from gamma and a step-time model, instead of the planner; see ``variants.py``.
    """

    name: str
    config: PlannerConfig | None = None
    belief: StepTimes | None = None
    confidence_scale: float = 1.0
    variant: Callable[[int, StepTimes], Controller] | None = None

    def controller(self, gamma: int, num_slots: int, machine: StepTimes) -> Controller | None:
        """Return a fresh policy for one run, None for no-spec."""
        belief = machine if self.belief is None else self.belief
        if self.variant is not None:
            return self.variant(gamma, belief)
        if self.config is None:
            return None
        scale = np.full(gamma, self.confidence_scale, dtype=np.float32)
        return PlannerController(self.config, gamma, num_slots, belief, scale)


class PlannerController:
    """Drive one :class:`~sgl_dspark.planner.policy.Planner` through a run.

    A lag of 0 lets the search read the confidences of the very step that it decides. That is an upper bound and not a
    policy: the global search on them is not lossless (paper, Appendix A), and a server would have to wait for them.

    Parameters
    ----------
    config : PlannerConfig
        Policy, lag, thresholds.
    gamma : int
        G.
    num_slots : int
        Request slots of the engine.
    belief : StepTimes
        What the planner thinks that steps take.
    inverse_temperatures : float32 [G]
        1 / T per slot.
    """

    def __init__(
        self,
        config: PlannerConfig,
        gamma: int,
        num_slots: int,
        belief: StepTimes,
        inverse_temperatures: F32,
    ) -> None:
        self.planner = Planner(config, gamma, num_slots)
        self.belief, self.gamma = belief, gamma
        self._inverse_temperatures = np.stack([inverse_temperatures, inverse_temperatures])

    def plan(self, batch: Batch, drafts: Drafts) -> Plan:
        """Decide one decode step, and publish the confidences of the requests that drafted in it."""
        requests = len(batch.slots)
        lag = self.planner.config.lag
        if lag == 0:
            self.planner.publish(batch.slots, batch.generations, drafts.logits, self.planner.history.step + 1)
        costs = StepCosts(
            self.belief.plain_time(requests, batch.context_tokens),
            self.belief.step_times(requests, self.gamma, batch.context_tokens),
            self.belief.draft_row_s(requests),
            self.belief.tiers,
        )
        view = StepView(batch.slots, batch.generations, costs, self._inverse_temperatures)
        decision = self.planner.decide(view)
        if not decision.draft:
            lens = np.zeros(requests, dtype=np.int64)
            return Plan(lens, 0, decision.expected_tokens, decision.step_time_s, decision.reason)
        drafted = np.ones(requests, dtype=bool) if decision.drafted is None else decision.drafted
        if lag > 0:
            self.planner.publish(batch.slots[drafted], batch.generations[drafted], drafts.logits[drafted])
        lens = self._lens(decision, drafts, costs)
        lens[~drafted] = 0
        predicted = decision.expected_tokens, decision.step_time_s
        return Plan(lens, int(np.count_nonzero(drafted)), *predicted, decision.reason)

    def _lens(self, decision: Decision, drafts: Drafts, costs: StepCosts) -> Ints:
        """Do the device's part: rank current survival, or apply the rule that needs no search."""
        config = self.planner.config
        if config.policy == "static":
            drafts_each = self.gamma if config.verify_drafts is None else min(config.verify_drafts, self.gamma)
            return np.full(len(drafts.logits), drafts_each, dtype=np.int64)
        if config.policy == "threshold":
            confidence = 1.0 / (1.0 + np.exp(-drafts.logits))
            return threshold_lens(confidence.astype(np.float32), config.threshold)
        survival = survival_of(drafts.logits, self._inverse_temperatures[0])
        if config.policy == "early-stop" or decision.budget is None:
            return early_stop(survival, costs.step_times)[1]
        if decision.drafted is not None:
            survival[~decision.drafted] = 0.0
        return admit(survival, decision.budget)


def standard_arms(gamma: int, lags: Sequence[int] = (2,), threshold: float = 0.5) -> list[Arm]:
    """Return no-spec, fixed lengths 1, 3, 5 and gamma, the threshold, Algorithm 1 and the lagged search.

    Parameters
    ----------
    gamma : int
        G; fixed lengths above it are left out.
    lags : sequence of int
        One adaptive arm each.
    threshold : float
        Of the threshold arm.
    """
    arms = [Arm(NO_SPEC, None)]
    arms += [static_arm(drafts) for drafts in sorted({1, 3, 5, gamma}) if drafts <= gamma]
    arms.append(Arm(f"threshold {threshold:g}", PlannerConfig(policy="threshold", threshold=threshold)))
    arms.append(Arm("early-stop", PlannerConfig(policy="early-stop")))
    arms += [Arm(f"adaptive lag {lag}", PlannerConfig(lag=lag)) for lag in lags]
    return arms


def static_arm(drafts: int) -> Arm:
    """Return the arm that verifies ``drafts`` of every request."""
    return Arm(f"static {drafts}", PlannerConfig(policy="static", verify_drafts=drafts))
