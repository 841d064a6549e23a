"""Notes once per decode step what is on the host anyway; the exporter's thread works the figures out (`Fold`).

A step is settled when its results are streamed: only then is it known how much of it the end of an answer cut off. On
the scheduler's thread nothing is counted but the tokens of each request, so that a step costs a few appends and a few
numpy calls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dspark_sglang.metrics import engine
from dspark_sglang.metrics.users import Users

if TYPE_CHECKING:
    from dspark_sglang.metrics.phases import PhaseClock
    from dspark_sglang.step import Step

# Rounds of one step whose confidence is compared with the outcome, evenly and in turn; more would tell no more.
MOST_ROWS = 16


class Settled(NamedTuple):
    """A verdict whose tokens have been sent on.

    ``accepted`` and ``alive`` are as in `Ledger.verdict`; ``cut`` has the tokens that the end of each answer cut off.
    """

    step: Step
    accepted: np.ndarray
    alive: np.ndarray
    everyone: bool
    cut: tuple[int, ...]


class Timed(NamedTuple):
    """A step and the seconds until the next began; ``predicted_s`` is 0 if nothing was."""

    step: Step
    predicted_s: float
    seconds: float


class Recorder:
    """What one worker does, waiting to be counted.

    Parameters
    ----------
    slots : int
        Rows of the engine's request pool.
    clock : PhaseClock

    Attributes
    ----------
    launched, timed_steps, settled, rounds_seen, delivered, ended : deque
        Filled by the scheduler's thread and emptied by `Fold.fold`: each append and each popleft is one atomic
        operation, so that neither waits for the other.
    """

    def __init__(self, slots: int, clock: PhaseClock) -> None:
        self.clock = clock
        self.users = Users(slots)
        self.launched: deque[Step] = deque()
        self.timed_steps: deque[Timed] = deque()
        self.settled: deque[Settled] = deque()
        self.rounds_seen: deque[tuple[np.ndarray, ...]] = deque()
        # Tokens of a prefill (one each), or of verdicts that got lost.
        self.delivered: deque[int] = deque()
        self.ended: deque[Any] = deque()
        self._pending: tuple[Step, np.ndarray, np.ndarray] | None = None
        self._finished: list[str] = []
        self._turn = 0

    def decided(self, step: Step) -> None:
        """Note a decode step that was launched."""
        self.launched.append(step)

    def timed(self, step: Step, predicted_s: float, seconds: float) -> None:
        """Note what a decode step took until the start of the next."""
        self.timed_steps.append(Timed(step, predicted_s, seconds))

    def verdict(self, step: Step, accepted: np.ndarray, alive: np.ndarray) -> None:
        """Keep a step's verdict until it is streamed; arrays as in `Ledger.verdict`."""
        if self._pending is not None:
            self._settle(())
        self._pending = (step, accepted, alive)

    def rounds(self, logits: np.ndarray, verified: np.ndarray, accepted: np.ndarray, kinds: np.ndarray) -> None:
        """Note some rounds of a step to compare confidence and outcome; arrays as in `OnlineCalibration.observe`."""
        stride = -(-len(logits) // MOST_ROWS)
        if stride > 1:
            self._turn = (self._turn + 1) % stride
            some = slice(self._turn, None, stride)
            logits, verified, accepted, kinds = logits[some], verified[some], accepted[some], kinds[some]
        self.rounds_seen.append((logits, verified, accepted, kinds))

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
        pending, ended = self._pending, self._finished
        if ended:
            self._finished = []
        if pending is not None and len(requests) == len(pending[0].requests) and requests[0] is pending[0].requests[0]:
            self._settle(ended)
            return
        now = time.perf_counter()
        for request in requests:
            if request is not skipped and not self.users.is_over(request):
                self._deliver(request, now)

    def aborted(self, request: Any) -> None:
        """Note a request that was dropped while it waited."""
        if not self.users.is_over(request):
            self.users.finish(request, engine.delivered_tokens(request), time.perf_counter())
            self.ended.append(None)

    def _settle(self, ended: Sequence[str]) -> None:
        assert self._pending is not None
        (step, accepted, alive), self._pending = self._pending, None
        now, everyone = time.perf_counter(), bool(alive.all())
        slots, taken = (step.slots, accepted) if everyone else (step.slots[alive], accepted[alive])
        self.users.step(slots, taken, now)
        cut = tuple(self._end(rid, now) for rid in ended)
        self.settled.append(Settled(step, accepted, alive, everyone, cut))

    def _end(self, rid: str, now: float) -> int:
        """Settle a request that has ended by the length of its answer; returns the tokens that were cut off."""
        request = self.users.named(rid)
        if request is None:
            return 0
        self.ended.append(request.finished_reason)
        return -self.users.finish(request, engine.delivered_tokens(request), now)

    def _deliver(self, request: Any, now: float) -> None:
        """Note what a request has got since it was looked at last: of a prefill, or of a verdict that got lost."""
        total = engine.delivered_tokens(request)
        if request.finished():
            new = self.users.finish(request, total, now)
            self.ended.append(request.finished_reason)
        elif total:
            new = self.users.deliver(request, engine.request_slot(request), total, now)
        else:
            return
        if new > 0:
            self.delivered.append(new)
