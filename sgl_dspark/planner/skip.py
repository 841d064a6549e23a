"""When not to draft: whole steps that drafting does not pay for, and single requests that never reach the budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class StepGate:
    """Hysteresis over the predicted gain of drafting, with probes that become rare.

    Parameters
    ----------
    min_gain, keep_gain : float
        Gain to exceed to begin drafting, and to fall below to end it.
    interval, interval_max : int
        Plain steps before the first probe, and most between two.
    """

    def __init__(self, min_gain: float, keep_gain: float, interval: int, interval_max: int) -> None:
        self.min_gain = min_gain
        self.keep_gain = keep_gain
        self.drafting = True
        self._least = interval
        self._most = interval_max
        self._interval = interval
        self._wait = interval

    def step(self, gain: float) -> tuple[bool, bool]:
        """Decide one step.

        Parameters
        ----------
        gain : float
            Predicted throughput of the best drafted step over a plain one, minus 1.

        Returns
        -------
        draft, probe : bool
            A probe is a drafted step that the gain does not justify.
        """
        if self.drafting:
            self.drafting = gain >= self.keep_gain
            if not self.drafting:
                self._interval = self._wait = self._least
        else:
            self.drafting = gain > self.min_gain
        if self.drafting:
            return True, False
        self._wait -= 1
        if self._wait >= 0:
            return False, False
        self._interval = min(2 * self._interval, self._most)
        self._wait = self._interval
        return True, True

    def confirm(self) -> None:
        """Probe again in the next step: the last probe alone would justify drafting, the average does not yet."""
        if not self.drafting:
            # Not back to the least: where single steps are often lucky, that would undo the backing off.
            self._interval = max(self._interval // 2, self._least)
            self._wait = 0


class RowChoice(NamedTuple):
    """Which requests to draft.

    Attributes
    ----------
    drafted : bool [R]
    probes : int
        Rows that are drafted only to look whether they have become worth it.
    """

    drafted: Bools
    probes: int


class RowGate:
    """Requests whose drafts were out of the budget's reach for several steps, by request slot.

    A row that is not drafted publishes nothing, so what is remembered of it is its last confidence. It comes back when
    the least survival admitted falls to that, or when a probe reads better.

    Parameters
    ----------
    num_slots : int
        Request slots of the engine.
    patience : int
        Consecutive steps out of reach before a row is left out.
    interval, interval_max : int
        Steps a row is left out before it is probed; the wait doubles.
    """

    def __init__(self, num_slots: int, patience: int, interval: int, interval_max: int) -> None:
        self._patience = patience
        self._least = interval
        self._most = interval_max
        self._generations = np.full(num_slots, -1, dtype=np.int64)
        self._low = np.zeros(num_slots, dtype=np.int64)
        self._interval = np.zeros(num_slots, dtype=np.int64)
        self._wait = np.zeros(num_slots, dtype=np.int64)
        self._idle = True

    def step(self, slots: Ints, generations: Ints, out_of_reach: Bools) -> RowChoice | None:
        """Decide one step.

        Parameters
        ----------
        slots, generations : int64 [R]
            Requests of this step.
        out_of_reach : bool [R]
            Rows whose remembered survival is below what the budget admits.

        Returns
        -------
        RowChoice or None
            None if every row is drafted.
        """
        if not out_of_reach.any():
            if not self._idle:
                self._low[slots] = 0
            return None
        self._idle = False
        out_of_reach &= self._generations.take(slots) == generations
        low = (self._low.take(slots) + 1) * out_of_reach
        self._low[slots] = low
        self._generations[slots] = generations
        left_out = low > self._patience
        if not left_out.any():
            return None
        interval, wait = self._interval.take(slots), self._wait.take(slots)
        first = low == self._patience + 1
        interval[first] = wait[first] = self._least
        wait -= left_out
        probe = left_out & (wait < 0)
        np.minimum(interval * 2, self._most, out=interval, where=probe)
        np.copyto(wait, interval, where=probe)
        self._interval[slots] = interval
        self._wait[slots] = wait
        return RowChoice(~left_out | probe, int(np.count_nonzero(probe)))
