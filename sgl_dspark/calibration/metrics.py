"""How well predicted survival agrees with outcomes: ECE, AUROC, Brier score and reliability (Sec. 3.2.1, Fig. 6).

All of them compare survival, the predicted probability that drafts 0..j are all accepted, with whether they were, over
observed slots only. Shape letters: N rounds, G = gamma slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgl_dspark.calibration.records import RecordSet

BINS = 20


@dataclass(frozen=True)
class Reliability:
    """Outcomes by predicted probability, in ``bins`` equal bins of [0, 1]; every array is float64 [bins].

    Attributes
    ----------
    count
        Observations, or their weight.
    mean_predicted, mean_observed
        NaN where a bin is empty.
    """

    count: NDArray[np.float64]
    mean_predicted: NDArray[np.float64]
    mean_observed: NDArray[np.float64]


@dataclass(frozen=True)
class SlotMetrics:
    """One slot's agreement. NaN stands for "cannot be computed": no observation, or one class only (AUROC).

    Attributes
    ----------
    count : int
        Rounds in which the slot was verified.
    ece : float
        Expected calibration error over 20 bins.
    floor : float
        ECE that perfect predictions would show on average with so few rounds; see `ece_floor`.
    auroc, brier : float
    mean_predicted, mean_observed : float
    """

    count: int
    ece: float
    floor: float
    auroc: float
    brier: float
    mean_predicted: float
    mean_observed: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values, None for NaN."""
        return {key: None if value != value else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SlotMetrics:
        """Read what `to_json` made."""
        read = {f.name: float("nan") if values[f.name] is None else float(values[f.name]) for f in fields(cls)}
        return cls(**{**read, "count": int(values["count"])})  # type: ignore[arg-type]


def bin_index(predicted: ArrayLike, bins: int = BINS) -> NDArray[np.int64]:
    """Return which of ``bins`` equal bins of [0, 1] holds each value; 1.0 belongs to the last."""
    index: NDArray[np.int64] = (np.asarray(predicted) * bins).astype(np.int64)
    return np.clip(index, 0, bins - 1)


def reliability(predicted: ArrayLike, label: ArrayLike, bins: int = BINS) -> Reliability:
    """Sort observations into bins.

    Parameters
    ----------
    predicted : float [N]
        In [0, 1].
    label : bool or float [N]
    bins : int
    """
    p, y = _vectors(predicted, label)
    index = bin_index(p, bins)
    count = np.bincount(index, minlength=bins).astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean_p = np.bincount(index, p, bins) / count
        mean_y = np.bincount(index, y, bins) / count
    return Reliability(count, mean_p, mean_y)


def ece(predicted: ArrayLike, label: ArrayLike, bins: int = BINS) -> float:
    """Return the expected calibration error: sum over bins of n_b / N * |mean prediction - mean label|."""
    p, y = _vectors(predicted, label)
    if not len(p):
        return float("nan")
    gaps = np.bincount(bin_index(p, bins), p - y, bins)
    return float(np.abs(gaps).sum() / len(p))


def ece_floor(predicted: ArrayLike, bins: int = BINS) -> float:
    """Return the ECE that these predictions would show on average if they were exactly right: what chance alone adds.

    A bin of n outcomes with variance v has a mean absolute gap of sqrt(2 v / (pi n)). Twenty bins of 500 rounds show
    several percent this way, so a measured ECE means little without it.
    """
    p = np.asarray(predicted, dtype=np.float64)
    if not len(p):
        return float("nan")
    variance = np.bincount(bin_index(p, bins), p * (1 - p), bins)
    return float(np.sqrt(2 * variance / np.pi).sum() / len(p))


def excess_ece(value: float, floor: float) -> float:
    """Return ECE less what chance adds, in quadrature, as E|N(e, s)| is about sqrt(e**2 + 2 s**2 / pi); at least 0."""
    return float(np.sqrt(max(0.0, value**2 - floor**2)))


def auroc(predicted: ArrayLike, label: ArrayLike) -> float:
    """Return the probability that a positive ranks above a negative, ties counting half; NaN for one class."""
    p, y = _vectors(predicted, label)
    positives = y > 0.5
    n_positive = int(positives.sum())
    n_negative = len(p) - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    _, place, count = np.unique(p, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    # Mean rank, from 1, of each group of equal predictions.
    rank = (last - (count - 1) / 2)[place]
    return float((rank[positives].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def brier(predicted: ArrayLike, label: ArrayLike) -> float:
    """Return the mean squared difference of prediction and label; NaN without data."""
    p, y = _vectors(predicted, label)
    return float(np.mean((p - y) ** 2)) if len(p) else float("nan")


def slot_metrics(survival: NDArray[Any], records: RecordSet) -> list[SlotMetrics]:
    """Compute every slot's metrics over its observed rounds.

    Parameters
    ----------
    survival : float [N, G]
        Predicted for ``records``, for example by `CalibrationMap.survival`.
    records : RecordSet
    """
    return [_slot(*observed_slot(survival, records, j)) for j in range(records.gamma)]


def observed_slot(
    survival: NDArray[Any], records: RecordSet, slot: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return predictions and labels of one slot, float64 [M] each, over the rounds that verified it."""
    rows = records.verified > slot
    return survival[rows, slot].astype(np.float64), (records.accepted[rows] > slot).astype(np.float64)


def mean_ece(metrics: list[SlotMetrics]) -> float:
    """Return the mean ECE over the slots that were observed; NaN if none was."""
    values = [m.ece for m in metrics if m.count]
    return float(np.mean(values)) if values else float("nan")


def _slot(p: NDArray[np.float64], y: NDArray[np.float64]) -> SlotMetrics:
    means = (float(p.mean()), float(y.mean())) if len(p) else (float("nan"), float("nan"))
    return SlotMetrics(len(p), ece(p, y), ece_floor(p), auroc(p, y), brier(p, y), *means)


def _vectors(predicted: ArrayLike, label: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    p, y = np.asarray(predicted, dtype=np.float64), np.asarray(label, dtype=np.float64)
    if p.shape != y.shape or p.ndim != 1:
        raise ValueError(f"Predictions {p.shape} and labels {y.shape} must be vectors of one length.")
    return p, y
