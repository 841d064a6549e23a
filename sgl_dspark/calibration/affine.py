"""One slot's temperature and intercept by penalised likelihood of prefix survival."""

from __future__ import annotations

import numpy as np

from sgl_dspark.calibration.maps import Floats

Line = tuple[float, float]

# Precision of the prior on slope and intercept, in the units of Fisher information: a round that verifies a slot brings
# about 0.15. Weak against a hundred rounds, and enough to keep a slot with a handful of them from running away.
_PRIOR_SLOPE, _PRIOR_BIAS = 8.0, 2.0
_SLOPE_LIMITS = (0.05, 5.0)
_BIAS_LIMIT = 6.0
_STEP_LIMIT = 1.5
_CONVERGED = 1e-4


def fit_slot(
    z: Floats,
    prefix: Floats,
    label: Floats,
    weight: Floats | None,
    start: Line,
    prior: Line,
    trust: float,
    iterations: int,
) -> Line:
    """Maximise the likelihood of ``label`` under prefix * sigmoid(slope * z + bias), by Fisher scoring.

    Parameters
    ----------
    z : float64 [N]
        Confidence logits of the slot.
    prefix : float64 [N]
        Calibrated survival of the slots before it, in [0, 1]; fixed.
    label : float64 [N]
        1 where the slot and all before it were accepted.
    weight : float64 [N] or None
        Of each round, at most 1; None: all 1.
    start, prior : (slope, bias)
        First guess and centre of the prior.
    trust : float
        Strength of the prior: 1 is weak, outweighed by some twenty rounds.
    iterations : int
        Most steps; it stops earlier when it has converged.

    Returns
    -------
    (slope, bias)
        Slope in [0.05, 5], bias in [-6, 6].
    """
    slope, bias = start
    k_slope, k_bias = trust * _PRIOR_SLOPE, trust * _PRIOR_BIAS
    for _ in range(iterations):
        c = 1.0 / (1.0 + np.exp(-np.clip(slope * z + bias, -30.0, 30.0)))
        p = prefix * c
        # (1 - c) / (1 - p) is at most 1, and is what a perfect prefix would make 1.
        share = (1.0 - c) / (1.0 - p)
        score = (label - p) * share
        info = p * (1.0 - c) * share
        if weight is not None:
            score *= weight
            info *= weight
        info_z = info * z
        g_bias = float(score.sum()) - k_bias * (bias - prior[1])
        g_slope = float(score @ z) - k_slope * (slope - prior[0])
        h_bb, h_sb, h_ss = float(info.sum()) + k_bias, float(info_z.sum()), float(info_z @ z) + k_slope
        determinant = h_bb * h_ss - h_sb * h_sb
        d_bias = (h_ss * g_bias - h_sb * g_slope) / determinant
        d_slope = (h_bb * g_slope - h_sb * g_bias) / determinant
        # Far from the optimum a full step can overshoot.
        damping = min(1.0, _STEP_LIMIT / max(abs(d_bias), abs(d_slope), 1e-12))
        slope = min(max(slope + damping * d_slope, _SLOPE_LIMITS[0]), _SLOPE_LIMITS[1])
        bias = min(max(bias + damping * d_bias, -_BIAS_LIMIT), _BIAS_LIMIT)
        if abs(d_bias) + abs(d_slope) < _CONVERGED:
            break
    return slope, bias
