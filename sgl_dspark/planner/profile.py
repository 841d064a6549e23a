"""The smoothed survival profile: what the K largest survivals of the next step are expected to be.

The search needs the *sorted* survivals of a step that is not there yet. With many requests the last readable step is a
good sample of it; with one, a single block's confidences say little about the block two steps later, and a K that
follows them is worse than a fixed one. So the sorted profile is averaged over steps, the more the fewer requests
there are. It is a set of quantiles and can be resized, which also makes it the memory of what acceptance was like while
nothing is drafted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]

PLAIN_ENOUGH = 0.97
MOST_AFTER_A_GAP = 0.5


class SurvivalProfile:
    """Exponential average of sorted survival.

    Parameters
    ----------
    smoothing_rows : float
        Requests at which a new step and the average so far weigh the same; 0 keeps only the latest step.
    """

    def __init__(self, smoothing_rows: float) -> None:
        self.smoothing_rows = smoothing_rows
        self._descending: Floats32 | None = None
        self._step = 0

    @property
    def known(self) -> bool:
        """Whether anything was learned yet."""
        return self._descending is not None

    def update(self, descending: Floats32, requests: int, step: int, strangers: float = 0.0) -> Floats32:
        """Learn from one readable step and give the average.

        Parameters
        ----------
        descending : float32 [R * gamma]
            Survival of all slots of one step, largest first. Kept; do not write to it afterwards.
        requests : int
            R, at least 1.
        step : int
            The current step. Evidence loses weight for every step that passes, drafted or not; what follows a gap still
            weighs no more than half unless it stands on many requests.
        strangers : float, optional
            Share of requests that have no history: as much of the average was about others and is dropped.
        """
        newest = requests / (requests + self.smoothing_rows)
        aged = min(1 - (1 - newest) ** (step - self._step), MOST_AFTER_A_GAP)
        weight = max(newest, aged, strangers)
        self._step = step
        if self._descending is None or weight >= PLAIN_ENOUGH:
            self._descending = descending
            return descending
        before = self.resized(descending.size)
        average = descending - before
        average *= np.float32(weight)
        average += before
        self._descending = average
        return average

    def resized(self, slots: int) -> Floats32:
        """Give the average as ``slots`` quantiles, float32 [slots], largest first.

        Raises
        ------
        ValueError
            If nothing was learned yet.
        """
        if self._descending is None:
            raise ValueError("The profile is empty: update it first.")
        size = self._descending.size
        if size == slots:
            return self._descending
        middles = (2 * np.arange(slots) + 1) * size // (2 * slots)
        return self._descending.take(middles)
