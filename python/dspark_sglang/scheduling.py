"""How much each decode step verifies: what the worker asks before, tells during, and learns after a step.

Host work only. What a decision reads is at least one finished step old (times, acceptance) or two (confidences); what
ranks the drafts is this step's own confidence, which never saw the token it judges. See docs/architecture.md.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dspark_sglang import compat, policy_codec
from dspark_sglang.allocation import Allocator, DevicePlan
from dspark_sglang.endings import Endings
from dspark_sglang.graphs import sent_to
from dspark_sglang.ledger import Ledger
from dspark_sglang.rank_sync import RankSync
from dspark_sglang.relay import ConfidenceRelay
from dspark_sglang.rounds import RoundLog
from dspark_sglang.scheduling_state import describe, report_launch, report_time
from dspark_sglang.step import Step
from sgl_dspark.calibration.online import ADJUSTED
from sgl_dspark.calibration.records import SAMPLED
from sgl_dspark.planner.policy import Planner
from sgl_dspark.planner.step import StepView

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from torch import Tensor

    from dspark_sglang.knowledge import Knowledge
    from dspark_sglang.metrics.recorder import Recorder
    from dspark_sglang.sampling_bridge import RowSampling
    from sgl_dspark.planner.config import PlannerConfig
    from sgl_dspark.sampling.block import DraftBlock
    from sgl_dspark.sampling.rejection import Verdict

logger = logging.getLogger(__name__)

# Under overlap a verdict comes one step after its own. If more wait, one got lost, and what came after it would be
# paired with the wrong step.
MOST_UNLEARNED = 4


class VerifyScheduler:
    """Plans, allocates and learns; one per worker process.

    Parameters
    ----------
    config : PlannerConfig
    knowledge : Knowledge
        Calibration and step times.
    runner : ModelRunner
        Of the target: gives context length, request pool and end tokens.
    gamma : int
        Drafts per block.
    ragged : bool
        Whether the attention backend verifies different lengths; else every step verifies whole blocks.
    ranks : RankSync, optional
    """

    def __init__(
        self,
        config: PlannerConfig,
        knowledge: Knowledge,
        runner: ModelRunner,
        *,
        gamma: int,
        ragged: bool,
        ranks: RankSync | None = None,
    ) -> None:
        policy_codec.check_gamma(config, gamma)
        self.gamma, self.knowledge, self.ragged = gamma, knowledge, ragged
        self.planner = Planner(config, gamma, compat.num_request_rows(runner))
        self.allocator = Allocator(gamma, knowledge.calibration)
        self.ledger = Ledger(gamma)
        self.rounds = RoundLog(gamma)
        self._runner = runner
        self._context_length = runner.model_config.context_len
        self._endings = Endings(compat.num_request_rows(runner), np.array(sorted(compat.end_tokens(runner)), np.int64))
        self._ranks = ranks or RankSync()
        self._relay = ConfidenceRelay()
        self._unlearned: deque[Step] = deque()
        self._last: Step | None = None
        # Confidences are calibrated before they are handed to the planner.
        self._ones = np.ones((2, gamma), np.float32)
        self._send_rounds_after: int | None = None
        # Set where metrics are exported.
        self.recorder: Recorder | None = None

    # Before the step.

    def begin(self, batch: ScheduleBatch, rows: RowSampling) -> Step:
        """Decide whether to draft, and how many drafts to verify in all."""
        now = time.perf_counter()
        self._close(now)
        self._receive()
        slots, generations = compat.request_identities(batch, self._runner)
        lengths = batch.seq_lens_cpu
        count, context_tokens = len(slots), int(lengths.sum())
        costs = self.knowledge.costs(count, self.gamma, context_tokens) if self.ragged else None
        kinds = rows.kinds(count, batch.reqs)
        calibration = self.knowledge.calibration
        room = (self._context_length - 1 - lengths).clamp(0, self.gamma).numpy()
        if self.planner.config.policy != "static":
            room = self._endings.useful(batch.reqs, slots.numpy(), generations.numpy(), lengths.numpy(), room)
        view = StepView(
            slots=slots.numpy(),
            generations=generations.numpy(),
            costs=costs,
            inverse_temperatures=self._ones,
            room=room,
            calibration_ok=calibration.usable,
            empirical=calibration.empirical[np.bincount(kinds).argmax()],
        )
        decision = self.planner.decide(view)
        if not self.ragged:
            # Upstream: its backends take gamma + 1 rows of every request, whatever was decided.
            decision = replace(decision, draft=True, budget=None, drafted=None)
        decision = self._ranks.decision(decision, count)
        drafted = None
        if decision.draft and decision.drafted is not None:
            drafted = torch.from_numpy(np.flatnonzero(decision.drafted))
        step = Step(
            number=decision.step,
            requests=list(batch.reqs),
            slots=view.slots,
            generations=view.generations,
            kinds=kinds,
            room=room,
            context_tokens=context_tokens,
            decision=decision,
            costs=costs,
            started_s=now,
            policy=self.planner.config.policy,
            drafted=drafted,
        )
        self._mark(step)
        return step

    def _mark(self, step: Step) -> None:
        """Note for the metrics that a part of the step is through."""
        if self.recorder is not None:
            self.recorder.clock.mark(step)

    def _receive(self) -> None:
        """Hand the planner what has arrived of earlier steps; it reads them two steps after they were drafted."""
        for sent in self._relay.receive():
            logits = self.knowledge.calibrated(sent.logits_cpu.numpy(), sent.kinds)
            self.planner.publish(sent.slots, sent.generations, logits, sent.step)
        if self._relay.waiting() > 1:
            # Only the step that was launched last may still be on its way.
            self.ledger.fallbacks["confidence_late"] += 1

    def interrupt(self, prefill_tokens: int) -> None:
        """Note a prefill: the time until the next decode step is not the last one's alone."""
        self._last = None
        self.ledger.prefill(prefill_tokens)

    def _close(self, now: float) -> None:
        """Take the time from the last decode step's start to now as what it cost."""
        last, self._last = self._last, None
        if last is None:
            return
        seconds, budget = now - last.started_s, last.verified
        self.knowledge.observe_time(len(last.slots), budget, last.drafted_count, last.context_tokens, seconds)
        last.took = (last.predicted_s(budget), seconds)
        if last.lens is not None:
            report_time(last, self.ledger, self.recorder)

    # During the step.

    def verify_lens(self, step: Step, block: DraftBlock | None) -> Tensor:
        """Choose how many tokens of each request are verified, anchor included: int64 [R] on the host."""
        self._mark(step)
        if block is None:
            step.lens = np.zeros(len(step.slots), np.int64)
        elif self.ragged:
            self.allocator.allocate(step, block, self.planner.config)
        else:
            step.lens = np.full(len(step.slots), self.gamma, np.int64)
        self._last = step
        assert step.lens is not None
        lens = self._ranks.agree(torch.from_numpy(step.lens))
        step.lens = lens.numpy()
        self._mark(step)
        return lens + 1

    def rank_on_device(self, step: Step) -> DevicePlan | None:
        """Return what the device ranks this step's drafts by; None where the host must, or other ranks be told."""
        if step.drafts and self.ragged and self._ranks.alone:
            step.on_device = self.allocator.on_device(step, self.planner.config)
        return step.on_device

    def launched(self, step: Step, lens: Tensor, survival: Tensor) -> None:
        """Take the place of `verify_lens` where the device ranked: of the n requests that drafted, on the device."""
        self._mark(step)
        step.ranked, self._last = (lens, survival), step
        self._mark(step)

    def end(self, step: Step, block: DraftBlock | None, verdict: Verdict) -> None:
        """Send what the host will learn from: confidences to the planner, with the drafts to the calibration."""
        self._mark(step)
        self._endings.note(step.requests, step.slots, step.generations, verdict.out_tokens, verdict.accept_lens)
        if block is not None:
            slots, generations, kinds = step.slots, step.generations, step.kinds
            logits, drafts = block.confidence_logits, block.tokens
            if step.drafted is not None:
                rows, on_device = step.drafted.numpy(), sent_to(step.drafted, drafts.device)
                slots, generations, kinds = slots[rows], generations[rows], kinds[rows]
                logits, drafts = logits[on_device], drafts[on_device]
            step.sent = self._relay.send(step.number, slots, generations, kinds, logits, drafts, step.ranked)
        self._unlearned.append(step)
        if len(self._unlearned) > MOST_UNLEARNED:
            self._unlearned.clear()
            self.ledger.fallbacks["step_without_verdict"] += 1
        if step.lens is not None:
            report_launch(step, self.ledger, self.recorder)

    # After the step.

    def learn(self, num_correct_drafts: list[int]) -> None:
        """Learn from the verdict on the oldest step that was not learned from yet."""
        step = self._unlearned.popleft() if self._unlearned else None
        if step is None or len(step.requests) != len(num_correct_drafts):
            # Never pair a verdict with another step: drop everything that waits.
            self._unlearned.clear()
            self.ledger.fallbacks["verdict_without_step"] += 1
            return
        if step.lens is None:
            self.allocator.settle(step)
            report_launch(step, self.ledger, self.recorder)
            report_time(step, self.ledger, self.recorder)
        alive = np.array([not compat.is_over(request) for request in step.requests], bool)
        accepted = np.array(num_correct_drafts, np.int64)
        self.ledger.verdict(step, accepted, alive)
        if self.recorder is not None:
            self.recorder.verdict(step, accepted, alive)
        if step.drafts:
            self._learn_rounds(step, accepted, alive)

    def _learn_rounds(self, step: Step, accepted: np.ndarray, alive: np.ndarray) -> None:
        """Record the drafted rounds of requests that were still running."""
        assert step.lens is not None
        assert step.sent is not None
        if step.drafted is None:
            rows = kept = np.flatnonzero(alive)
        else:
            drafted = step.drafted.numpy()
            kept = np.flatnonzero(alive[drafted])
            rows = drafted[kept]
        if not len(rows):
            return
        verified, accepted = self._endings.cut(step.sent.tokens_cpu.numpy()[kept], step.lens[rows], accepted[rows])
        logits, kinds = step.sent.logits_cpu.numpy()[kept], step.kinds[rows]
        if self.recorder is not None:
            self.recorder.rounds(logits, verified, accepted, kinds)
        self.knowledge.observe_rounds(logits, verified, accepted, kinds)
        # What is recorded calibrates later servers, so it holds plain requests only.
        plain = kinds != ADJUSTED
        self.rounds.append(logits[plain], verified[plain], accepted[plain], kinds[plain] == SAMPLED)

    # From outside.

    def configure(self, numbers: dict[str, int | float]) -> None:
        """Switch the policy, or arrange that the next state carries rounds; see `policy_codec` and `http`."""
        numbers = dict(numbers)
        after = numbers.pop(policy_codec.SEND_ROUNDS, None)
        if after is not None:
            self._send_rounds_after = None if after < 0 else int(after)
        if numbers:
            config = policy_codec.decode(numbers, self.planner.config)
            policy_codec.check_gamma(config, self.gamma)
            self.planner.configure(config)
            logger.info("verify policy: %s", policy_codec.shown(config))

    def state(self) -> dict[str, Any]:
        """Return what ``GET /dspark/state`` shows, as JSON values."""
        shown = describe(self)
        if self._send_rounds_after is not None:
            shown["rounds"] = self.rounds.reply(self._send_rounds_after)
        return shown

    def clear_totals(self) -> None:
        """Start the totals over."""
        self.ledger = Ledger(self.gamma)
        self.planner.totals.clear()
        self.planner.fallbacks.clear()
