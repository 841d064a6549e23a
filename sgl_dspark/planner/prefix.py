"""Algorithm 1: admit drafts in the order of survival until throughput stops rising (Sec. 3.2.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.planner.capacity import Capacity

Floats32 = NDArray[np.float32]
Floats64 = NDArray[np.float64]
Ints = NDArray[np.int64]


def early_stop(survival: Floats32 | Floats64, step_times: Floats64) -> tuple[Capacity, Ints]:
    """Run the hardware-aware prefix scheduler on current survival, exactly as the paper writes it.

    It may read this step's confidences: whether slot (r, j) is admitted depends on what ranks before it and on its
    own survival, which knows nothing of its own draft. That holds only because the first step that does not raise the
    throughput ends the search, equality included; looking further would bias the output (Appendix A).

    Parameters
    ----------
    survival : float32 or float64 [R, gamma]
        In [0, 1], non-increasing along j, of this step. Slots with survival 0 are never admitted.
    step_times : float64 [R * gamma + 1]
        Seconds of a step that verifies R + k tokens; the reciprocal of the paper's SPS(R + k).

    Returns
    -------
    capacity : Capacity
        With the K that was reached.
    lens : int64 [R]
        Drafts per request, a prefix of its block.
    """
    requests, gamma = survival.shape
    flat = survival.reshape(-1)
    # A stable sort of (r, j) in row order is the key (-a, r, j).
    order = np.argsort(-flat, kind="stable")
    order = order[: int(np.count_nonzero(flat > 0))]
    tokens = np.empty(order.size + 1)
    tokens[0] = requests
    tokens[1:] = flat[order]
    np.add.accumulate(tokens, out=tokens)
    rates = tokens / step_times[: tokens.size]
    # Rates rise strictly up to the first that does not, so the one before it is the best so far.
    stops = np.flatnonzero(~(rates[1:] > rates[:-1]))
    budget = int(stops[0]) if stops.size else order.size
    lens = np.bincount(order[:budget] // gamma, minlength=requests).astype(np.int64)
    return Capacity(budget, float(tokens[budget]), float(step_times[budget])), lens
