"""From confidence logits to survival: the probability that a draft and all drafts before it are accepted (Sec. 3.2).

Shape letters: R requests, G = gamma slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]

# exp stays finite in fp32 above this; sigmoid(-80) is 2e-35, which ranks like 0 but is not 0.
LEAST_LOGIT = np.float32(-80.0)
ROWS_FOR_COLUMNS = 128
"""From this many rows on, multiplying column by column is faster than numpy's cumprod."""


def survival_of(logits: Floats32, inverse_temperatures: Floats32) -> Floats32:
    """Turn confidence logits into calibrated survival (Sec. 3.2.1, a_j = product over i <= j of sigmoid(z_i / T_i)).

    Parameters
    ----------
    logits : float32 [R, G]
        Raw logits of the confidence head, of any step.
    inverse_temperatures : float32 [G] or [R, G]
        1 / T per slot, positive; ones where nothing was fitted.

    Returns
    -------
    float32 [R, G]
        C-contiguous, in [0, 1], non-increasing along j. A NaN logit makes its slot and every later one 0, so that
        such drafts are never admitted; whoever reads the logits counts them.
    """
    scaled = logits * inverse_temperatures
    np.maximum(scaled, LEAST_LOGIT, out=scaled)
    np.negative(scaled, out=scaled)
    np.exp(scaled, out=scaled)
    scaled += np.float32(1.0)
    np.reciprocal(scaled, out=scaled)
    # fmax ignores NaN where maximum would keep it.
    np.fmax(scaled, np.float32(0.0), out=scaled)
    return prefix_products(scaled)


def prefix_products(confidence: Floats32) -> Floats32:
    """Multiply confidences along the slots, in place: float32 [R, G] conditional to [R, G] survival."""
    if len(confidence) < ROWS_FOR_COLUMNS:
        np.multiply.accumulate(confidence, axis=1, out=confidence)
        return confidence
    for j in range(1, confidence.shape[1]):
        column = confidence[:, j]
        np.multiply(column, confidence[:, j - 1], out=column)
    return confidence
