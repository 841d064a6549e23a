"""A robust Kalman filter for coefficients whose commonest change is that all of them scale together."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["accepted", "rejected"]

_GATE = 3.0
_REJECTED_WEIGHT = 0.1
# Sizes of one step's random walk: of the common scale (a share of it), and of each coefficient (a share of its prior).
_SCALE_WALK = 0.005
_OWN_WALK = 0.003
# How much is unlearnt when the level shifts: variances grow by this factor, and the common scale by this share.
_SHIFT_GROWTH = 4.0
_SHIFT_SCALE = 0.3


class RobustFilter:
    """Linear regression with forgetting: ``seconds = x . theta`` plus noise.

    Three choices make it hold on a live server. **Forgetting is a random walk along theta itself**: a machine that
    slows down scales every term, so a surprise that the data cannot attribute, as when only drafted steps are seen,
    moves all terms in proportion, also those of the mode that is not seen; each coefficient walks on its own, too, but
    slower. **The variance of a coefficient never exceeds its prior's**, so that directions without data (no prefill for
    an hour) do not blow up. **Innovations of z > 3 standard deviations count as 0.9 / z of one**, and do not narrow
    the variance: an outlier is all but ignored, an error that stays is followed in the end, and a level shift is left
    to :meth:`shift`, which knows better than one step which terms it touches.

    Parameters
    ----------
    mean, spread : float64 [P]
        Prior mean and standard deviation of the coefficients.

    Attributes
    ----------
    resets : int
        Times that the covariance had to begin again from the prior's.
    """

    def __init__(self, mean: NDArray[np.float64], spread: NDArray[np.float64]) -> None:
        self.theta = mean.astype(np.float64)
        self._prior = spread.astype(np.float64) ** 2
        self._covariance = np.diag(self._prior)
        self._diagonal = self._covariance.reshape(-1)[:: self._prior.shape[0] + 1]
        self._walk = self._prior * _OWN_WALK**2
        self.resets = 0

    def predict(self, x: NDArray[np.float64]) -> float:
        """Return the expected seconds of a step with regressors ``x`` (float64 [P])."""
        return float(x @ self.theta)

    def update(self, x: NDArray[np.float64], seconds: float, noise_s: float, trusted: bool = False) -> Verdict:
        """Learn from one step.

        Parameters
        ----------
        x : float64 [P]
            Regressors of the step.
        seconds : float
            What it took.
        noise_s : float
            Standard deviation of steps with the same regressors, above 0.
        trusted : bool
            Never reject it.
        """
        theta, covariance = self.theta, self._covariance
        covariance += np.multiply.outer(theta * _SCALE_WALK**2, theta)
        self._diagonal += self._walk
        self._cap()
        reach = covariance @ x
        own = float(x @ reach)
        if not 0 <= own < np.inf:
            # Rounding has eaten the covariance, after many shifts in a row: begin again from the prior's.
            self.resets += 1
            covariance[:] = np.diag(self._prior)
            reach = covariance @ x
            own = float(x @ reach)
        variance = own + noise_s * noise_s
        error = seconds - float(x @ theta)
        surprise = abs(error) / variance**0.5
        gain = reach / variance
        if surprise > _GATE and not trusted:
            theta += gain * (error * _REJECTED_WEIGHT * (_GATE / surprise) ** 2)
            return "rejected"
        theta += gain * error
        covariance -= np.multiply.outer(gain, reach)
        # Kept symmetric, or rounding makes it less than positive in the long run.
        covariance += covariance.T
        covariance *= 0.5
        return "accepted"

    def _cap(self) -> None:
        excess = self._diagonal > self._prior
        if excess.any():
            shrink = np.ones_like(self._prior)
            shrink[excess] = np.sqrt(self._prior[excess] / self._diagonal[excess])
            self._covariance *= np.multiply.outer(shrink, shrink)

    def shift(self, scale: float, width: NDArray[np.float64]) -> None:
        """Scale all coefficients and unlearn part of what is known of them: the level of the measurements has shifted.

        Parameters
        ----------
        scale : float
            Above 0; 1 if the shift is not common to all steps, and which terms it touches is to be learnt.
        width : float64 [P]
            How far each coefficient may have moved by itself, as a share of its prior's standard deviation.
        """
        self.theta *= scale
        self._covariance *= _SHIFT_GROWTH
        self._covariance += np.multiply.outer(self.theta * _SHIFT_SCALE**2, self.theta)
        self._diagonal += self._prior * width**2
        self._cap()
