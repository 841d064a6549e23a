"""Live ECE with forgetting, and the test that tells a change of traffic from chance.

Shape letters: N rounds, G = gamma slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.calibration.maps import Floats
from sgl_dspark.calibration.metrics import BINS, bin_index

# Weight that evidence keeps from one block of rounds to the next: about three blocks are remembered.
_KEEP = 0.6
# Least Fisher information of a slot before it takes part; below it the chi-square approximation is poor.
_MIN_INFORMATION = 4.0


class LiveEce:
    """Histogram per slot of predictions and outcomes, from which ECE and bias are read at any time."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        # Per slot and bin, weighted: count, predictions, outcomes, and the variance of the outcomes' sum.
        self._sums = np.zeros((4, gamma, BINS))

    def reset(self) -> None:
        """Forget everything."""
        self._sums[:] = 0.0

    def add(
        self,
        survival: Floats,
        verified: NDArray[np.int64],
        accepted: NDArray[np.int64],
        weights: Floats | None,
        keep: float,
    ) -> None:
        """Add rounds, [N, G], [N], [N], weighted by [N]; what was there before is multiplied by ``keep`` in [0, 1]."""
        self._sums[:3] *= keep
        self._sums[3] *= keep * keep
        slots = np.arange(self._gamma)
        row, slot = np.nonzero(slots < verified[:, None])
        p = survival[row, slot]
        y = (accepted[row] > slot).astype(np.float64)
        w = np.ones(len(p)) if weights is None else weights[row]
        cell = slot * BINS + bin_index(p)
        size = self._gamma * BINS
        for i, values in enumerate((w, w * p, w * y, w * w * p * (1 - p))):
            self._sums[i] += np.bincount(cell, values, size).reshape(self._gamma, BINS)

    def weight(self) -> Floats:
        """Return the weight of the observations of each slot, float64 [G]."""
        return np.asarray(self._sums[0].sum(axis=1))

    def ece(self) -> Floats:
        """Return the expected calibration error of each slot, float64 [G]; NaN without observations."""
        return self._per_slot(np.abs(self._sums[1] - self._sums[2]))

    def floor(self) -> Floats:
        """Return the ECE that chance alone gives, float64 [G]; see `metrics.ece_floor`."""
        return self._per_slot(np.sqrt(2 * self._sums[3] / np.pi))

    def bias(self) -> Floats:
        """Return mean prediction less mean outcome of each slot, float64 [G]."""
        return self._per_slot(self._sums[1] - self._sums[2])

    def mean_excess(self) -> float:
        """Return the mean over observed slots of ECE less chance, in quadrature; NaN without observations."""
        seen = self.weight() > 0
        if not seen.any():
            return float("nan")
        excess = self.ece()[seen] ** 2 - self.floor()[seen] ** 2
        return float(np.sqrt(np.maximum(0.0, excess)).mean())

    def _per_slot(self, sums: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.asarray(sums.sum(axis=1) / self.weight())


class DriftTest:
    """Tests whether recent outcomes can come from the map that predicted them.

    Per slot, the score of intercept and slope over the rounds that reached it, divided by its variance: chi-square with
    two degrees of freedom if the map is right, and independent from slot to slot, as each is conditional on the ones
    before. A drift must be both beyond chance and large enough to matter.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._score = np.zeros((2, gamma))
        self._info = np.zeros((3, gamma))
        self._live = LiveEce(gamma)

    def reset(self) -> None:
        """Forget everything, after a restart."""
        self._score[:] = 0.0
        self._info[:] = 0.0
        self._live.reset()

    def add(
        self, z: Floats, confidence: Floats, survival: Floats, verified: NDArray[np.int64], accepted: NDArray[np.int64]
    ) -> None:
        """Add a block of rounds with what was predicted for them: [N, G] three times, then [N] twice."""
        slots = np.arange(self._gamma)
        reached = (slots < verified[:, None]) & (slots <= accepted[:, None])
        residual = np.where(reached, (slots < accepted[:, None]) - confidence, 0.0)
        info = np.where(reached, confidence * (1 - confidence), 0.0)
        self._score *= _KEEP
        # A sum that is scaled has its variance scaled by the square.
        self._info *= _KEEP * _KEEP
        self._score += (residual.sum(axis=0), (residual * z).sum(axis=0))
        self._info += (info.sum(axis=0), (info * z).sum(axis=0), (info * z * z).sum(axis=0))
        self._live.add(survival, verified, accepted, None, _KEEP)

    def statistic(self) -> tuple[float, int]:
        """Return chi-square and its degrees of freedom over the slots with enough information."""
        used = self._info[0] >= _MIN_INFORMATION
        (s0, s1), (i0, i1, i2) = self._score[:, used], self._info[:, used]
        determinant = np.maximum(i0 * i2 - i1 * i1, 1e-9)
        values = (i2 * s0 * s0 - 2 * i1 * s0 * s1 + i0 * s1 * s1) / determinant
        return float(values.sum()), 2 * int(used.sum())

    def drifted(self, bound: float) -> bool:
        """Whether outcomes differ beyond chance (about 1 in 10,000 blocks) and recent mean ECE exceeds ``bound``."""
        value, freedom = self.statistic()
        if not freedom or value <= _critical(freedom):
            return False
        return self._live.mean_excess() > bound


def _critical(freedom: int) -> float:
    """Quantile 0.9999 of chi-square, by Wilson and Hilferty's cube."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + 3.719 * np.sqrt(spread)) ** 3)
