"""From confidence logits to survival: one temperature and one intercept per slot (Sec. 3.2).

Shape letters: N rounds, G = gamma slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Far outside what a confidence head says; keeps exp() finite for any float that comes in.
_LOGIT_LIMIT = 60.0


@dataclass(frozen=True)
class CalibrationMap:
    """Calibrated confidence of slot j is sigmoid(z_j * inverse_temperatures[j] + biases[j]).

    The paper scales by temperatures alone, which leaves a logit of 0 at probability 1/2 whatever the traffic is; where
    acceptance shifts as a whole (greedy matching, another domain) an intercept is needed as well. Both keep the order
    of confidences within a slot, as inverse temperatures are positive.

    Attributes
    ----------
    inverse_temperatures : float64 [G]
        Positive and finite.
    biases : float64 [G]
        Finite, in logits; all zero for plain temperature scaling.
    """

    inverse_temperatures: Floats
    biases: Floats

    def __post_init__(self) -> None:
        inverse, biases = self.inverse_temperatures, self.biases
        if inverse.ndim != 1 or inverse.shape != biases.shape:
            raise ValueError(f"Temperatures {inverse.shape} and biases {biases.shape} must be vectors of one length.")
        if not (np.isfinite(inverse).all() and np.isfinite(biases).all() and (inverse > 0).all()):
            raise ValueError("Inverse temperatures must be positive, and they and the biases finite.")

    @classmethod
    def identity(cls, gamma: int) -> CalibrationMap:
        """Return the map that leaves ``gamma`` slots as the confidence head says."""
        return cls(np.ones(gamma), np.zeros(gamma))

    @classmethod
    def of_temperatures(cls, temperatures: ArrayLike, biases: ArrayLike | None = None) -> CalibrationMap:
        """Return the map of temperatures (positive), [G], and biases, [G], by default zero."""
        values = np.asarray(temperatures, dtype=np.float64)
        with np.errstate(divide="ignore"):
            inverse = 1.0 / values
        return cls(inverse, np.zeros_like(values) if biases is None else np.asarray(biases, dtype=np.float64))

    @property
    def is_identity(self) -> bool:
        """Whether it leaves every confidence as it is."""
        return bool((self.inverse_temperatures == 1).all() and (self.biases == 0).all())

    @property
    def gamma(self) -> int:
        """Number of slots."""
        return len(self.biases)

    @property
    def temperatures(self) -> Floats:
        """float64 [G], positive."""
        return 1.0 / self.inverse_temperatures

    def confidence(self, logits: ArrayLike) -> Floats:
        """Return float64 [N, G] in (0, 1): acceptance of each slot given that the slots before it were accepted."""
        scaled = np.asarray(logits, dtype=np.float64) * self.inverse_temperatures + self.biases
        return sigmoid(scaled)

    def survival(self, logits: ArrayLike) -> Floats:
        """Return float64 [N, G], non-increasing along the slots: probability that slots 0..j are all accepted."""
        survival: Floats = np.cumprod(self.confidence(logits), axis=1, dtype=np.float64)
        return survival


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + exp(-values)) without overflow; NaN stays NaN."""
    return 1.0 / (1.0 + np.exp(-np.clip(values, -_LOGIT_LIMIT, _LOGIT_LIMIT)))
