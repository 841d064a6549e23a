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


def slot_sums(
    survival: Floats, verified: NDArray[np.int64], accepted: NDArray[np.int64], weights: Floats | None = None
) -> Floats:
    """Sum rounds by slot and bin of predicted survival, over observed slots.

    Parameters
    ----------
    survival : float64 [N, G]
    verified, accepted : int64 [N]
    weights : float64 [N], optional
        All 1 by default.

    Returns
    -------
    float64 [4, G, 20]
        Weight; weighted predictions; weighted outcomes; variance of the latter if predictions are right.
    """
    gamma = survival.shape[1]
    row, slot = np.nonzero(np.arange(gamma) < verified[:, None])
    p, hit = survival[row, slot], accepted[row] > slot
    w = np.ones(len(p)) if weights is None else weights[row]
    weighted = w * p
    cell = slot * BINS + bin_index(p)
    terms = (w, weighted, w * hit, w * weighted * (1 - p))
    sums: Floats = np.stack([np.bincount(cell, term, gamma * BINS) for term in terms])
    return sums.reshape(4, gamma, BINS)


class LiveEce:
    """Histogram per slot of predictions and outcomes, from which ECE and bias are read at any time."""

    def __init__(self, gamma: int) -> None:
        self._sums = np.zeros((4, gamma, BINS))

    def reset(self) -> None:
        """Forget everything."""
        self._sums[:] = 0.0

    def add(self, sums: Floats, keep: float) -> None:
        """Add `slot_sums` of rounds; what was there before is multiplied by ``keep`` in [0, 1]."""
        self._sums[:3] *= keep
        self._sums[3] *= keep * keep
        self._sums += sums

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
        self, z: Floats, confidence: Floats, verified: NDArray[np.int64], accepted: NDArray[np.int64], sums: Floats
    ) -> None:
        """Add a block of rounds: logits and predictions, [N, G], outcomes, [N], and their `slot_sums`."""
        slots = np.arange(self._gamma)
        reached = (slots < verified[:, None]) & (slots <= accepted[:, None])
        residual = np.where(reached, (slots < accepted[:, None]) - confidence, 0.0)
        info = np.where(reached, confidence * (1 - confidence), 0.0)
        self._score *= _KEEP
        # A sum that is scaled has its variance scaled by the square.
        self._info *= _KEEP * _KEEP
        self._score += (residual.sum(axis=0), (residual * z).sum(axis=0))
        self._info += (info.sum(axis=0), (info * z).sum(axis=0), (info * z * z).sum(axis=0))
        self._live.add(sums, _KEEP)

    def statistic(self) -> tuple[float, int]:
        """Return chi-square and its degrees of freedom over the slots with enough information."""
        used = self._info[0] >= _MIN_INFORMATION
        (s0, s1), (i0, i1, i2) = self._score[:, used], self._info[:, used]
        determinant = np.maximum(i0 * i2 - i1 * i1, 1e-9)
        values = (i2 * s0 * s0 - 2 * i1 * s0 * s1 + i0 * s1 * s1) / determinant
        return float(values.sum()), 2 * int(used.sum())

    def changed(self, bound: float) -> bool:
        """Whether outcomes differ beyond chance (about 1 in 10,000 blocks) and recent mean ECE exceeds ``bound``."""
        value, freedom = self.statistic()
        return freedom > 0 and value > _critical(freedom) and self.mean_excess() > bound

    def mean_excess(self) -> float:
        """Return the mean ECE of the last few blocks, less what chance adds; NaN without observations."""
        return self._live.mean_excess()


def _critical(freedom: int) -> float:
    """Quantile 0.9999 of chi-square, by Wilson and Hilferty's cube."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + 3.719 * np.sqrt(spread)) ** 3)
