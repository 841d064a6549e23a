"""Updates the sheet once per decode step, from what is on the host anyway.

A step is settled when its results are streamed: only then is it known how much of it the end of an answer cut off. The
cost is that of a few numpy calls; what several steps share is worked out when the sheet is read (`fold`).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sglang.metrics import engine
from dspark_sglang.metrics.definitions import DEFAULT_SLA, LABEL_VALUES, LOADS
from dspark_sglang.metrics.phases import PhaseClock
from dspark_sglang.metrics.reliability import Calibrate, Reliability
from dspark_sglang.metrics.sheet import Sheet
from dspark_sglang.metrics.users import Users

if TYPE_CHECKING:
    from dspark_sglang.step import Step


class Recorder:
    """Counts what one worker does.

    Parameters
    ----------
    gamma : int
    slots : int
        Rows of the engine's request pool.
    sla : sequence of float
        Anchors in tokens per second per user.
    clock : PhaseClock, optional

    Attributes
    ----------
    lock : Lock
        Held while the sheet changes, so that whoever reads it sees whole steps.
    """

    def __init__(
        self, gamma: int, slots: int, sla: Sequence[float] = DEFAULT_SLA, clock: PhaseClock | None = None
    ) -> None:
        self.gamma = gamma
        self.sheet = Sheet(gamma, sla)
        self.users = Users(self.sheet, slots)
        self.reliability = Reliability(self.sheet, gamma)
        self.clock = clock or PhaseClock()
        self.lock = Lock()
        # Rounds by policy, drafts verified, drafts accepted: from it `fold` has lengths, slots and sums.
        self._rounds = np.zeros((len(LABEL_VALUES["policy"]), gamma + 1, gamma + 1))
        self._flat = [plane.reshape(-1) for plane in self._rounds]
        # Tokens that are not in `_rounds`, or are and were not delivered.
        self._extra: Counter[str] = Counter()
        self._pending: tuple[Step, np.ndarray, np.ndarray] | None = None
        self._finished: list[str] = []
        self._tiers: tuple[Any, list[int]] = (None, [])
        self._policy = {name: i for i, name in enumerate(LABEL_VALUES["policy"])}
        self._finish = {name: i for i, name in enumerate(LABEL_VALUES["finish"])}
        self._edges = {name: list(edges) for name, edges in self.sheet.edges.items()}
        self._view = {cell.metric.name: self.sheet.view(cell.metric.name) for cell in self.sheet}

    # Once a step.

    def decided(self, step: Step) -> None:
        """Count a decode step that was launched."""
        assert step.lens is not None
        requests, budget, drafted = len(step.lens), int(step.lens.sum()), step.drafted_count
        rows, view, policy = requests + budget, self._view, self._policy[step.policy]
        tier = self._tier(step, rows)
        with self.lock:
            view["dspark_steps_total"][policy, 0 if step.drafts else 1] += 1
            view["dspark_rounds_total"] += requests
            view["dspark_proposed_tokens_total"] += drafted * self.gamma
            view["dspark_verify_tokens_total"] += rows
            view["dspark_padding_tokens_total"] += tier - rows
            if drafted < requests:
                view["dspark_undrafted_rounds_total"][1 if step.drafts else 0] += requests - drafted
            self._observe("dspark_verify_budget_drafts", budget, policy)
            self._observe("dspark_step_requests", requests)
            self._observe("dspark_verify_tier_tokens", tier)

    def timed(self, step: Step, predicted_s: float, seconds: float) -> None:
        """Count what a decode step took until the start of the next."""
        assert step.lens is not None
        requests, load, view = len(step.lens), load_class(len(step.lens)), self._view
        step.seconds = seconds
        with self.lock:
            self._observe("dspark_step_seconds", seconds, 0 if step.drafts else 1)
            self.clock.add(step, seconds, view["dspark_phase_seconds_total"])
            view["dspark_load_steps_total"][load] += 1
            view["dspark_load_rounds_total"][load] += requests
            view["dspark_load_verify_tokens_total"][load] += requests + int(step.lens.sum())
            view["dspark_load_seconds_total"][load] += seconds
            if step.emitted is not None:
                view["dspark_load_tokens_total"][load] += step.emitted
            if predicted_s > 0 and seconds > 0:
                view["dspark_predicted_step_seconds_total"] += predicted_s
                view["dspark_predicted_actual_seconds_total"] += seconds
                self._observe("dspark_step_time_error_ratio", abs(predicted_s / seconds - 1.0))

    def verdict(self, step: Step, accepted: np.ndarray, alive: np.ndarray) -> None:
        """Keep a step's verdict until it is streamed; arrays as in `Ledger.verdict`."""
        if self._pending is not None:
            self._settle([])
        self._pending = (step, accepted, alive)

    def finished(self, rid: str) -> None:
        """Note that a request of the step being processed has ended."""
        self._finished.append(rid)

    def streamed(self, requests: Sequence[Any], skipped: Any = None) -> None:
        """Settle what SGLang has just sent on: the verdict that waits, or the outcome of a prefill.

        Parameters
        ----------
        requests : sequence
            SGLang's requests of the batch.
        skipped : request or None
            The one whose prefill goes on.
        """
        pending = self._pending
        if pending is not None and len(requests) == len(pending[0].requests) and requests[0] is pending[0].requests[0]:
            ended, self._finished = self._finished, []
            self._settle(ended)
            return
        now = time.perf_counter()
        with self.lock:
            self._finished.clear()
            for request in requests:
                if request is not skipped and not self.users.is_over(request):
                    self._deliver(request, now)

    def aborted(self, request: Any) -> None:
        """Count a request that was dropped while it waited."""
        with self.lock:
            if not self.users.is_over(request):
                self.users.finish(request, engine.delivered_tokens(request), time.perf_counter())
                self._view["dspark_requests_finished_total"][self._finish["abort"]] += 1

    def rounds(
        self,
        calibrate: Calibrate,
        logits: np.ndarray,
        verified: np.ndarray,
        accepted: np.ndarray,
        sampled: np.ndarray,
    ) -> None:
        """Compare confidence and outcome; see `Reliability.add`."""
        with self.lock:
            self.reliability.add(calibrate, logits, verified, accepted, sampled)

    # Inside.

    def _settle(self, ended: Sequence[str]) -> None:
        assert self._pending is not None
        (step, accepted, alive), self._pending = self._pending, None
        assert step.lens is not None
        lens, slots, everyone = step.lens, step.slots, bool(alive.all())
        if not everyone:
            lens, slots, accepted = lens[alive], slots[alive], accepted[alive]
        emitted = accepted + 1
        step.emitted = total = int(emitted.sum())
        now, view = time.perf_counter(), self._view
        with self.lock:
            plane = self._flat[self._policy[step.policy]]
            plane += np.bincount(lens * (self.gamma + 1) + accepted, minlength=plane.size)
            self._extra["ended"] += len(step.slots) - len(slots)
            self.users.step(slots, emitted, now)
            if step.seconds is not None:
                view["dspark_load_tokens_total"][load_class(len(step.slots))] += total
            if everyone and step.drafts and step.expected is not None:
                view["dspark_expected_tokens_total"] += step.expected.sum()
                view["dspark_expected_actual_tokens_total"] += total
                planned = step.decision.expected_tokens
                if planned == planned:
                    view["dspark_planned_tokens_total"] += planned
                    view["dspark_planned_actual_tokens_total"] += total
            if ended:
                self._end(step, alive, emitted, ended, now)

    def _end(self, step: Step, alive: np.ndarray, emitted: np.ndarray, ended: Sequence[str], now: float) -> None:
        """Take back what the ends of answers cut off; the bonus is the last token of a round."""
        rows = {request.rid: i for i, request in enumerate(step.requests)}
        place = np.cumsum(alive) - 1
        for rid in ended:
            row = rows.get(rid)
            if row is None or not alive[row] or self.users.is_over(step.requests[row]):
                continue
            request, run = step.requests[row], int(emitted[place[row]])
            cut = -self.users.finish(request, engine.delivered_tokens(request), now)
            self._extra["cut_bonus"] += min(cut, 1)
            self._extra["cut_accepted"] += max(min(cut, run) - 1, 0)
            self._count_end(request)

    def _deliver(self, request: Any, now: float) -> None:
        """Count what a request has got since it was looked at last: of a prefill, or of a verdict that got lost."""
        total, over = engine.delivered_tokens(request), request.finished()
        if over:
            new = self.users.finish(request, total, now)
            self._count_end(request)
        elif total:
            new = self.users.deliver(request, engine.request_slot(request), total, now)
        else:
            return
        if new == 1:
            self._view["dspark_bonus_tokens_total"][1] += 1
        elif new > 1:
            self._extra["lost_bonus"] += 1
            self._extra["lost_accepted"] += new - 1

    def _count_end(self, request: Any) -> None:
        kind = self._finish.get(engine.finish_kind(request), self._finish["abort"])
        self._view["dspark_requests_finished_total"][kind] += 1

    def _tier(self, step: Step, rows: int) -> int:
        tiers = None if step.costs is None else step.costs.tiers
        if tiers is None:
            return rows
        if self._tiers[0] is not tiers:
            self._tiers = (tiers, tiers.tolist())
        sizes = self._tiers[1]
        place = bisect_left(sizes, rows)
        return sizes[place] if place < len(sizes) else rows

    def _observe(self, name: str, value: float, *labels: int) -> None:
        buckets = self._view[name][labels]
        buckets[bisect_left(self._edges[name], value)] += 1
        buckets[-1] += value

    # Now and then.

    def fold(self) -> None:
        """Work out what is kept by rounds; call with the lock held, before the sheet is read."""
        self.reliability.digest()
        view, extra, steps = self._view, self._extra, np.arange(self.gamma + 1)
        rounds = self._rounds.sum(axis=0)
        total = rounds.sum()
        view["dspark_verified_tokens_total"][...] = (rounds.sum(axis=1) * steps).sum()
        accepted = (rounds.sum(axis=0) * steps).sum() - extra["cut_accepted"] + extra["lost_accepted"]
        view["dspark_accepted_tokens_total"][...] = accepted
        view["dspark_bonus_tokens_total"][0] = total - extra["cut_bonus"] + extra["lost_bonus"]
        view["dspark_cut_tokens_total"][...] = extra["cut_accepted"] + extra["cut_bonus"]
        view["dspark_ended_rounds_total"][...] = extra["ended"]
        slots = steps[:-1, None, None]
        verified, taken = steps[:, None] > slots, steps[None, :] > slots
        view["dspark_slot_verified_total"][...] = (rounds * verified).sum(axis=(1, 2))
        view["dspark_slot_accepted_total"][...] = (rounds * taken).sum(axis=(1, 2))
        view["dspark_slot_judged_total"][...] = (rounds * (verified & (steps[None, :] >= slots))).sum(axis=(1, 2))
        for name, axis in (("dspark_verify_length_tokens", 2), ("dspark_accept_length_tokens", 1)):
            counts, histogram = self._rounds.sum(axis=axis), view[name]
            histogram[:, : self.gamma + 1] = counts
            histogram[:, -1] = (counts * (steps + 1)).sum(axis=1)


def load_class(requests: int) -> int:
    """Return the place of a number of requests among `LOADS`; past the last for more."""
    return min((requests - 1).bit_length(), len(LOADS))
