"""Sequential temperature scaling, fitted on prefix survival (Sec. 3.2.1), and its extension by intercepts.

Shape letters: N rounds, G = gamma slots, T grid points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.calibration.affine import fit_slot
from sgl_dspark.calibration.maps import CalibrationMap, Floats, sigmoid
from sgl_dspark.calibration.metrics import BINS, bin_index
from sgl_dspark.calibration.records import RecordSet

# Odd, so that the middle is exactly 1.
GRID_POINTS = 81
GRID_LIMIT = 5.0
MIN_ROUNDS = 200
# Grid points are evaluated in groups of so many predictions, to bound memory.
_CHUNK = 2_000_000


def temperature_grid(points: int = GRID_POINTS, limit: float = GRID_LIMIT) -> Floats:
    """Return ``points`` (odd) temperatures, evenly spaced in the logarithm from 1 / limit to limit, nearest 1 first.

    The first is exactly 1.0, so that the first of several equal minima is the one nearest to leaving things alone.
    """
    if points % 2 == 0 or limit <= 1:
        raise ValueError("The grid needs an odd number of points and a limit above 1, so that it contains 1.0.")
    steps = np.arange(points) - points // 2
    # A stable order; of a pair T and 1 / T the one below 1 comes first.
    steps = steps[np.argsort(np.abs(steps), kind="stable")]
    grid: Floats = limit ** (steps / (points // 2))
    return grid


def fit_sts(records: RecordSet, *, grid: Floats | None = None, min_rounds: int = MIN_ROUNDS) -> Floats:
    """Fit one temperature per slot, slot by slot, by grid search on the ECE of prefix survival.

    Slot k's temperature minimises the 20-bin ECE between the product of sigmoid(z_i / T_i) over i <= k, the earlier
    temperatures being fixed, and "drafts 0..k were all accepted", over the rounds that verified slot k. The paper
    leaves grid, bins and ties open. Deviation from a bare minimum: the ECE curve of few rounds is jagged, so among
    temperatures within 0.1 / sqrt(N) of the minimum the one nearest to 1 is taken; on the data of the fit the slot's
    ECE is still never above that of T = 1.

    Parameters
    ----------
    records : RecordSet
        Of one kind (greedy or sampled).
    grid : float64 [T], optional
        Positive; the first of several equally good ones is taken. Default: `temperature_grid`.
    min_rounds : int
        A slot that fewer rounds have verified keeps T = 1.

    Returns
    -------
    float64 [G]
    """
    points = temperature_grid() if grid is None else grid
    temperatures = np.ones(records.gamma)
    prefix = np.ones(len(records))
    for slot in range(records.gamma):
        z = records.logits[:, slot].astype(np.float64)
        rows = records.verified > slot
        if rows.sum() >= min_rounds:
            errors = _grid_ece(z[rows], prefix[rows], records.accepted[rows] > slot, points)
            tolerance = 0.1 / np.sqrt(rows.sum())
            temperatures[slot] = points[np.flatnonzero(errors <= errors.min() + tolerance)[0]]
        prefix = prefix * sigmoid(z / temperatures[slot])
    return temperatures


def _grid_ece(z: Floats, prefix: Floats, label: NDArray[np.bool_], grid: Floats) -> Floats:
    """Return the ECE at every temperature, float64 [T]."""
    errors = np.empty(len(grid))
    step = max(1, _CHUNK // max(1, len(z)))
    for start in range(0, len(grid), step):
        part = grid[start : start + step]
        predicted = prefix * sigmoid(z / part[:, None])
        index = bin_index(predicted) + np.arange(len(part))[:, None] * BINS
        gaps = np.bincount(index.ravel(), (predicted - label).ravel(), BINS * len(part))
        errors[start : start + step] = np.abs(gaps.reshape(len(part), BINS)).sum(axis=1) / len(z)
    return errors


def fit_affine(
    records: RecordSet, *, start: CalibrationMap | None = None, min_rounds: int = MIN_ROUNDS, iterations: int = 12
) -> CalibrationMap:
    """Fit a temperature and an intercept per slot, slot by slot, by the likelihood of prefix survival.

    The same sequence and the same target as `fit_sts`, with a proper score instead of ECE: smooth, so that two
    parameters can be found without a grid, and about as precise as the data allow.

    Parameters
    ----------
    records : RecordSet
        Of one kind (greedy or sampled).
    start : CalibrationMap, optional
        Where the weak prior is centred and what slots with too few rounds keep; the identity by default.
    min_rounds : int
        As in `fit_sts`.
    iterations : int
        Scoring steps per slot.
    """
    base = CalibrationMap.identity(records.gamma) if start is None else start
    inverse, biases = base.inverse_temperatures.copy(), base.biases.copy()
    prefix = np.ones(len(records))
    for slot in range(records.gamma):
        z = records.logits[:, slot].astype(np.float64)
        rows = records.verified > slot
        if rows.sum() >= min_rounds:
            label = (records.accepted[rows] > slot).astype(np.float64)
            prior = (float(inverse[slot]), float(biases[slot]))
            inverse[slot], biases[slot] = fit_slot(z[rows], prefix[rows], label, None, prior, prior, 1.0, iterations)
        prefix = prefix * sigmoid(z * inverse[slot] + biases[slot])
    return CalibrationMap(inverse, biases)
