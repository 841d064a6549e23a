"""How much each decode step of SGLang's worker verifies: our planning, told in the order in which that worker runs.

A step is decided before its draft; its verdict comes one step later, its confidences two steps later (one without
SGLang's ring, none without overlap). Which drafts the budget goes to is ranked by SGLang on the device.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dspark_sglang import compat, policy_codec
from dspark_sglang.bridge.conditions import refuse_policy
from dspark_sglang.bridge.head import HeadCalibration, logits_of
from dspark_sglang.bridge.rounds import BridgedStep, RequestKinds, Verdict, context_tokens
from dspark_sglang.bridge.timing import StepClock
from dspark_sglang.scheduling import MOST_UNLEARNED, VerifyScheduler
from dspark_sglang.step import Step
from sgl_dspark.calibration.online import ADJUSTED
from sgl_dspark.calibration.records import SAMPLED
from sgl_dspark.planner.step import StepView
from sgl_dspark.planner.survival import survival_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.model_executor.model_runner import ModelRunner

    from dspark_sglang.bridge.knowledge import BridgeKnowledge
    from dspark_sglang.bridge.profile import SelfProfile
    from dspark_sglang.bridge.timing import Timed
    from dspark_sglang.rank_sync import RankSync
    from sgl_dspark.planner.config import PlannerConfig
    from sgl_dspark.planner.step import Decision


class BridgeScheduler(VerifyScheduler):
    """Plans and learns; one per rank. Totals, state and policies are `VerifyScheduler`'s.

    Parameters
    ----------
    config : PlannerConfig
    knowledge : BridgeKnowledge
    runner : ModelRunner
        Of the target.
    gamma : int
    head : HeadCalibration
    profile : SelfProfile
    ranks : RankSync
        Of the ranks that run the same batch.

    Raises
    ------
    ConfigError
        If the policy leaves the lengths to the device; see `refuse_policy`.
    """

    def __init__(
        self,
        config: PlannerConfig,
        knowledge: BridgeKnowledge,
        runner: ModelRunner,
        *,
        gamma: int,
        head: HeadCalibration,
        profile: SelfProfile,
        ranks: RankSync | None = None,
    ) -> None:
        refuse_policy(config)
        # SGLang's worker drafts in every step, so there is no plain step that drafting would have to beat.
        config = replace(config, min_gain=-1.0, keep_gain=-1.0)
        super().__init__(config, knowledge, runner, gamma=gamma, ragged=True, ranks=ranks)
        self.forced_share: float | None = None
        self._head, self._profile, self._bridge_knowledge = head, profile, knowledge
        self._kinds = RequestKinds(compat.num_request_rows(runner))
        self._deciding: BridgedStep | None = None
        self._launched: deque[BridgedStep] = deque()
        self._unread: deque[BridgedStep] = deque()
        self._clock, self._follows_decode = StepClock(), False

    # Before the step.

    def decide(self, batch: Any, slots: np.ndarray, generations: np.ndarray) -> int:
        """Decide K of the next decode step, the same on every rank.

        Parameters
        ----------
        batch : ScheduleBatch
        slots, generations : int64 [R]
            Rows of the request pool and their occupants' numbers.
        """
        now, requests = time.perf_counter(), len(slots)
        timed = self._clock.close(now)
        self._follows_decode = timed is not None
        self._learn_time(timed)
        tokens = context_tokens(batch)
        costs = self.knowledge.costs(requests, self.gamma, tokens)
        kinds, calibration = self._kinds.of(batch.reqs, slots, generations), self.knowledge.calibration
        majority = int(np.bincount(kinds).argmax())
        view = StepView(
            slots=slots,
            generations=generations,
            costs=costs,
            inverse_temperatures=self._ones,
            calibration_ok=calibration.usable,
            empirical=calibration.empirical[majority],
        )
        decision = self.planner.decide(view)
        agreed = self._ranks.agree(torch.tensor([self._budget(decision, requests)]))
        budget = int(agreed)
        step = Step(
            number=decision.step,
            requests=list(batch.reqs),
            slots=slots,
            generations=generations,
            kinds=kinds,
            room=np.full(requests, self.gamma, np.int64),
            context_tokens=tokens,
            decision=replace(decision, draft=True, budget=budget, drafted=None),
            costs=costs,
            started_s=now,
            policy=self.planner.config.policy,
        )
        in_force = calibration.inverse_temperatures[majority], calibration.biases[majority]
        self._deciding = BridgedStep(step, budget, batch.req_pool_indices, in_force)
        return budget

    def _budget(self, decision: Decision, requests: int) -> int:
        """Turn this rank's decision into K."""
        most = requests * self.gamma
        if self.forced_share is not None:
            return min(max(int(self.forced_share * most), 0), most)
        if self.planner.config.policy == "static":
            return most
        # While prompts are read between decode steps, no step is timed: nothing is tried, and no patience lost.
        tried = self._profile.wanted(requests) if self._follows_decode else None
        if tried is not None:
            self.planner.totals["profiling"] += 1
            return tried
        budget = 0 if decision.budget is None else decision.budget
        # Slots beyond the budget stay observed: now and then a block's worth more of them is verified.
        probes, limit = self.allocator.probes, self.planner.config.max_budget
        if probes.full_length_probe(decision.step, requests, requests + budget) >= 0:
            more = min(budget + self.gamma, most) - budget
            probes.charge(more)
            budget += more
        return budget if limit is None else min(budget, max(limit, 0))

    @property
    def deciding(self) -> Step:
        """The step that was decided last and is not launched yet."""
        assert self._deciding is not None
        return self._deciding.step

    def _learn_time(self, timed: Timed | None) -> None:
        """Learn from what the last decode step took."""
        if timed is None:
            return
        bridged, seconds = timed.bridged, timed.seconds
        requests, budget, tokens = len(bridged.step.slots), bridged.budget, bridged.step.context_tokens
        if bridged.verdict is not None:
            self._tell_time(bridged)
        if timed.steady:
            self.knowledge.observe_time(requests, budget, requests, tokens, seconds)
        if timed.repeated and self._profile.note(requests, budget, tokens, seconds):
            self._bridge_knowledge.adopt(self._profile.probes())

    def _tell_time(self, bridged: BridgedStep) -> None:
        if bridged.seconds is None or bridged.told:
            return
        bridged.told = True
        predicted_s = bridged.step.predicted_s(bridged.budget)
        self.ledger.timed(bridged.step, predicted_s, bridged.seconds)
        if self.recorder is not None:
            self.recorder.timed(bridged.step, predicted_s, bridged.seconds)

    def interrupt(self, prefill_tokens: int = 0) -> None:
        """Note a step that is no decode: the time until the next one is not the last one's alone."""
        self._clock.interrupt()
        if prefill_tokens:
            self.ledger.prefill(prefill_tokens)

    # What confidences there are.

    def unread(self, lag: int) -> BridgedStep | None:
        """Return the step whose confidences can be read when the next step is decided; None if there is none.

        ``lag`` is in decode steps. Steps before it will not be read any more.
        """
        number = self.planner.history.step + 1 - lag
        while self._unread and self._unread[0].step.number < number:
            self.lost(self._unread[0])
        if self._unread and self._unread[0].step.number == number:
            return self._unread[0]
        return None

    def lost(self, bridged: BridgedStep) -> None:
        """Go on without the confidences of a step: the copy from the device has not arrived in time."""
        self.ledger.fallbacks["confidence_late"] += 1
        self._read(bridged)

    def receive(self, bridged: BridgedStep, confidence: np.ndarray) -> None:
        """Take a step's confidences, float32 [R, gamma], rows in its own order."""
        step = bridged.step
        bridged.logits = logits_of(confidence, bridged.in_force)
        calibrated = self.knowledge.calibrated(bridged.logits, step.kinds)
        self.planner.publish(step.slots, step.generations, calibrated, step.number)
        self._read(bridged)

    def _read(self, bridged: BridgedStep) -> None:
        if self._unread and self._unread[0] is bridged:
            self._unread.popleft()
        bridged.awaited = False
        if bridged.verdict is not None:
            self._settle(bridged, bridged.verdict)

    # During the step.

    def before_launch(self) -> None:
        """Let the device rank by the calibration of the step that was decided; call on the draft's stream."""
        if self._deciding is not None:
            self._head.follow(*self._deciding.in_force)
            self._deciding.in_force = self._head.in_force

    def receive_own(self, confidence: np.ndarray) -> None:
        """Take the confidences of the step being decided, where no overlap delays them."""
        bridged = self._deciding
        assert bridged is not None
        # The draft has run before the step was decided.
        bridged.in_force = self._head.in_force
        self.receive(bridged, confidence)

    def returned(self, result: Any) -> None:
        """Note what the worker returned for the step that was decided."""
        bridged, self._deciding = self._deciding, None
        if bridged is None:
            return
        bridged.result = result
        self._clock.start(bridged)
        if bridged.awaited:
            self._unread.append(bridged)
        self._launched.append(bridged)
        if len(self._launched) > MOST_UNLEARNED:
            self._launched.clear()
            self.ledger.fallbacks["step_without_verdict"] += 1

    # After the step.

    def learn(self, num_correct_drafts: Sequence[int]) -> None:
        """Learn from the verdict on the oldest step that has none yet."""
        if not len(num_correct_drafts):
            return
        bridged = self._launched.popleft() if self._launched else None
        if bridged is None or len(bridged.step.requests) != len(num_correct_drafts):
            # Never pair a verdict with another step: drop everything that waits.
            self._launched.clear()
            self.ledger.fallbacks["verdict_without_step"] += 1
            return
        step = bridged.step
        alive = np.array([not compat.is_over(request) for request in step.requests], bool)
        verdict = bridged.judge(num_correct_drafts, self.gamma, self._endings.end_tokens, alive)
        self.ledger.decided(step)
        if self.recorder is not None:
            self.recorder.decided(step)
            self.recorder.verdict(step, verdict.correct, alive)
        self._tell_time(bridged)
        if not bridged.awaited:
            self._settle(bridged, verdict)

    def _settle(self, bridged: BridgedStep, verdict: Verdict) -> None:
        """Learn from a step whose confidences are known, or lost."""
        step, logits, alive = bridged.step, bridged.logits, verdict.alive
        assert step.lens is not None
        if logits is not None:
            survival = survival_of(self.knowledge.calibrated(logits, step.kinds), self._ones[0])
            chosen = np.arange(self.gamma) < step.lens[:, None]
            step.expected = 1.0 + np.where(chosen, survival, np.float32(0.0)).sum(axis=1)
        self.ledger.verdict(step, verdict.correct, alive)
        if logits is None or not alive.any():
            return
        rows = (logits[alive], verdict.verified[alive], verdict.accepted[alive], step.kinds[alive])
        if self.recorder is not None:
            self.recorder.rounds(*rows)
        self.knowledge.observe_rounds(*rows)
        plain = rows[3] != ADJUSTED
        logits, verified, accepted, kinds = (column[plain] for column in rows)
        self.rounds.append(logits, verified, accepted, kinds == SAMPLED)

    # From outside.

    def configure(self, numbers: dict[str, int | float]) -> None:
        """Switch the policy as `VerifyScheduler.configure` does; raise `ConfigError` for one that is not served."""
        fields = {name: number for name, number in numbers.items() if name != policy_codec.SEND_ROUNDS}
        refuse_policy(policy_codec.decode(fields, self.planner.config))
        super().configure(numbers)
