"""Which drafts to verify: rank current survival and admit K (Sec. 5.2), or cut at a confidence threshold.

Shape letters: R requests, G = gamma slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]


def admit(survival: Floats32, budget: int) -> Ints:
    """Give every request its drafts to verify: the first ``budget`` slots in the order (-survival, r, j).

    Parameters
    ----------
    survival : float32 [R, G]
        Of this step, non-increasing along j. Slot j must know only the drafts before it.
    budget : int
        K, decided without this step's confidences.

    Returns
    -------
    int64 [R]
        Drafts per request, a prefix of its block; their sum is min(K, number of slots with survival above 0).
    """
    requests, gamma = survival.shape
    flat = survival.reshape(-1)
    if budget <= 0 or not flat.size:
        return np.zeros(requests, dtype=np.int64)
    cut = np.float32(0.0)
    if budget < flat.size:
        cut = max(np.partition(flat, flat.size - budget)[flat.size - budget], cut)
    admitted = flat > cut
    if cut > 0:
        # Invariant: ties are broken by place, never by anything that a draft's own value could move.
        missing = budget - int(np.count_nonzero(admitted))
        admitted[np.flatnonzero(flat == cut)[:missing]] = True
    lens: Ints = np.count_nonzero(admitted.reshape(requests, gamma), axis=1)
    return lens


def threshold_lens(confidence: Floats32, threshold: float) -> Ints:
    """Count the leading slots whose own confidence reaches the threshold (the released code's rule).

    Parameters
    ----------
    confidence : float32 [R, G]
        Conditional, of this step; NaN ends a prefix.
    threshold : float
        0 or less verifies all slots that have a confidence.

    Returns
    -------
    int64 [R]
        Drafts per request.
    """
    lens: Ints = np.count_nonzero(np.logical_and.accumulate(confidence >= threshold, axis=1), axis=1)
    return lens
