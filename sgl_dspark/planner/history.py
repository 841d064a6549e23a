"""What the capacity search may know: confidences published two decode steps ago or earlier (Sec. 5.2).

Shape letters: R requests, G = gamma slots, S request slots of the engine. A *generation* numbers the occupants of a
request slot, so that a recycled slot never lends the confidence of its former occupant.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER = -(1 << 60)
MOST_SURVIVAL = np.float32(0.99)


class Lagged(NamedTuple):
    """Confidence logits as of ``lag`` steps ago, for the requests of this step.

    Attributes
    ----------
    logits : float32 [R, G]
        A copy; rows that are not known hold what happened to be there.
    known : bool [R]
        Rows that this request itself published, recently enough, without NaN.
    counts : dict of str to int
        Why rows are not known: ``no_history`` (nothing published in this slot yet), ``slot_reused`` (what was
        published belongs to a former occupant), ``stale_history``, ``nan_confidence``.
    members_changed : int
        Rows of this step that had not published under their generation ``lag`` steps ago.
    settled_step : int
        Step of the latest publication that may be read; negative before the first.
    """

    logits: Floats32
    known: Bools
    counts: dict[str, int]
    members_changed: int
    settled_step: int


class ConfidenceHistory:
    """Confidences by request slot, readable only when they are ``lag`` decode steps old.

    Publications wait in a queue and reach the readable table when the step counter has moved on far enough. So the
    delay is the same on every device, however early or late a copy arrives.

    Parameters
    ----------
    num_slots : int
        S, request slots of the engine.
    gamma : int
        G.
    lag : int, optional
        Steps between a publication and its first use; 2 as in the paper. Less than 2 is for simulations.
    max_age : int, optional
        Steps after which a row no longer counts as known.
    """

    def __init__(self, num_slots: int, gamma: int, lag: int = 2, max_age: int = 256) -> None:
        self.lag = lag
        self.max_age = max_age
        self.step = 0
        self.settled_step = -1
        self._logits = np.zeros((num_slots, gamma), dtype=np.float32)
        self._generations = np.full(num_slots, -1, dtype=np.int64)
        self._steps = np.full(num_slots, NEVER, dtype=np.int64)
        self._waiting: deque[tuple[int, Ints, Ints, Floats32]] = deque()

    def advance(self) -> int:
        """Begin the next decode step and give its number; step 1 is the first."""
        self.step += 1
        return self.step

    def publish(self, slots: Ints, generations: Ints, logits: Floats32, step: int | None = None) -> None:
        """Hand over the confidence logits of one decode step, once a step.

        Parameters
        ----------
        slots, generations : int64 [R]
            Requests that were drafted, each once; the others are left out and keep what they published before.
        logits : float32 [R, G]
            Copied.
        step : int, optional
            The step they were drafted in, for hosts that learn them later; default the current one.

        Raises
        ------
        ValueError
            If the steps of two publications are out of order.
        """
        at = self.step if step is None else step
        last = self._waiting[-1][0] if self._waiting else self.settled_step
        if at < last:
            raise ValueError(f"Confidences of step {at} were published after those of step {last}: keep their order.")
        self._waiting.append((at, slots.copy(), generations.copy(), logits.astype(np.float32)))

    def lagged(self, slots: Ints, generations: Ints) -> Lagged:
        """Read what was published ``lag`` or more steps before the current one.

        Parameters
        ----------
        slots, generations : int64 [R]
            Requests of the current step.
        """
        self._settle()
        logits = self._logits.take(slots, axis=0)
        same = self._generations.take(slots) == generations
        known = self._steps.take(slots) >= self.step - self.max_age
        known &= same
        broken = logits != logits
        counts: dict[str, int] = {}
        members_changed = 0
        if not known.all():
            members_changed = self._explain(slots, same, known, counts)
        if broken.any():
            lost = broken.any(axis=1) & known
            known &= ~lost
            counts["nan_confidence"] = int(np.count_nonzero(lost))
        return Lagged(logits, known, counts, members_changed, self.settled_step)

    def _settle(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.step - self.lag:
            at, slots, generations, logits = self._waiting.popleft()
            self._logits[slots] = logits
            self._generations[slots] = generations
            self._steps[slots] = at
            self.settled_step = at

    def _explain(self, slots: Ints, same: Bools, known: Bools, counts: dict[str, int]) -> int:
        """Count the reasons of unknown rows; give the rows that have not published under their generation."""
        other = ~same
        changed = int(np.count_nonzero(other))
        empty = int(np.count_nonzero(self._steps.take(slots[other]) == NEVER)) if changed else 0
        stale = int(np.count_nonzero(same & ~known))
        for name, count in (("no_history", empty), ("slot_reused", changed - empty), ("stale_history", stale)):
            if count:
                counts[name] = count
        return changed


class SlotMean:
    """Running mean of survival per slot position: what a request without history is taken to be like.

    Parameters
    ----------
    gamma : int
        G.
    prior_confidence : float, optional
        Conditional acceptance assumed before there is evidence, in (0, 1).
    prior_rows : float, optional
        Rows that the prior weighs as much as.
    memory_rows : float, optional
        Rows after which older ones are forgotten.
    """

    def __init__(
        self, gamma: int, prior_confidence: float = 0.7, prior_rows: float = 8.0, memory_rows: float = 512.0
    ) -> None:
        self.value: Floats32 = np.cumprod(np.full(gamma, prior_confidence)).astype(np.float32)
        self.evidence_rows = 0
        self._weight = prior_rows
        self._memory = memory_rows

    def update(self, survival: Floats32, known: Bools | None = None) -> None:
        """Learn from one step.

        Parameters
        ----------
        survival : float32 [N, G]
            Of rows that published lately.
        known : bool [N], optional
            Rows to learn from; default all.
        """
        weights = np.ones(len(survival), np.float32) if known is None else known.astype(np.float32)
        rows = float(weights.sum())
        if not rows:
            return
        mean = weights @ survival / np.float32(rows)
        self.value += (mean - self.value) * np.float32(rows / (self._weight + rows))
        # Never 1.0: a burst of strangers would be admitted in full exactly when the budget should shrink.
        np.minimum(self.value, MOST_SURVIVAL, out=self.value)
        self._weight = min(self._weight + rows, self._memory)
        self.evidence_rows += int(rows)
