"""Rounds whose law of acceptance is known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.records import RecordSet

GAMMA = 7


@dataclass(frozen=True)
class Traffic:
    """Requests whose drafts are accepted with probability sigmoid(z / temperature + bias) at every slot.

    Attributes
    ----------
    temperature, bias : float
    mean, spread : float
        Of the confidence logits, which are normal and, within a round, correlated by one half.
    """

    temperature: float = 1.0
    bias: float = 0.0
    mean: float = 1.5
    spread: float = 1.6

    def truth(self, gamma: int = GAMMA) -> CalibrationMap:
        """Return the map that is right for this traffic."""
        return CalibrationMap.of_temperatures(np.full(gamma, self.temperature), np.full(gamma, self.bias))

    def draw(self, count: int, rng: np.random.Generator, gamma: int = GAMMA, sampled: bool = False) -> RecordSet:
        """Draw rounds that were verified in full."""
        common, own = rng.normal(size=(count, 1)), rng.normal(size=(count, gamma))
        logits = (self.mean + self.spread * (common + own) / 2**0.5).astype(np.float32)
        hits = rng.random((count, gamma)) < self.truth(gamma).confidence(logits)
        accepted = np.cumprod(hits, axis=1).sum(axis=1)
        return RecordSet.of(logits, np.full(count, gamma), accepted, np.full(count, sampled))


def trim(records: RecordSet, verified: NDArray[np.int64]) -> RecordSet:
    """Return the same rounds as if only ``verified`` drafts, [N], had been checked."""
    return RecordSet.of(records.logits, verified, np.minimum(records.accepted, verified), records.sampled)


def exact_ece(chosen: CalibrationMap, traffic: Traffic, rng: np.random.Generator, count: int = 20_000) -> float:
    """Mean over slots of the ECE of a map against the true survival, so without the noise of outcomes."""
    logits = traffic.draw(count, rng, chosen.gamma).logits
    predicted, true = chosen.survival(logits), traffic.truth(chosen.gamma).survival(logits)
    bins = np.minimum((predicted * 20).astype(int), 19)
    gaps = [np.abs(np.bincount(bins[:, j], predicted[:, j] - true[:, j])).sum() / count for j in range(chosen.gamma)]
    return float(np.mean(gaps))
