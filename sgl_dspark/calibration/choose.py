"""Fit one kind of requests, choose the method, and measure the result on rounds that the fit never saw."""

from __future__ import annotations

import numpy as np

from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.metrics import SlotMetrics, excess_ece, slot_metrics
from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.calibration.store import KindCalibration
from sgl_dspark.calibration.sts import MIN_ROUNDS, fit_affine, fit_sts

METHODS = ("auto", "sts", "affine")
# Share of the fit's own rounds that `auto` compares the methods on.
_COMPARED = 0.3


def fit_kind(fit: RecordSet, held_out: RecordSet, method: str = "auto") -> KindCalibration:
    """Fit the calibration of greedy or of sampled requests.

    Parameters
    ----------
    fit, held_out : RecordSet
        Of one kind and one gamma.
    method : str
        ``sts``: temperatures, as in the paper. ``affine``: temperatures and intercepts. ``auto``: whichever has the
        lower ECE beyond chance on a part of ``fit`` that it was not fitted to; the held-out rounds take no part.

    Returns
    -------
    KindCalibration
        The identity if ``fit`` has fewer rounds than a fit needs.
    """
    if len(fit) < MIN_ROUNDS:
        chosen, name = CalibrationMap.identity(fit.gamma), "identity"
    else:
        name = _better(fit) if method == "auto" else method
        chosen = _fit(fit, name)
    return KindCalibration(
        chosen, name, _measure(CalibrationMap.identity(fit.gamma), held_out), _measure(chosen, held_out)
    )


def mean_excess_ece(metrics: tuple[SlotMetrics, ...]) -> float:
    """Return the mean over observed slots of ECE less what chance adds; NaN if none was observed."""
    values = [excess_ece(m.ece, m.floor) for m in metrics if m.count]
    return float(np.mean(values)) if values else float("nan")


def _fit(records: RecordSet, method: str) -> CalibrationMap:
    return CalibrationMap.of_temperatures(fit_sts(records)) if method == "sts" else fit_affine(records)


def _better(records: RecordSet) -> str:
    part, compared = records.split(_COMPARED)
    if len(part) < MIN_ROUNDS or len(compared) < MIN_ROUNDS:
        return "sts"
    errors = {name: mean_excess_ece(_measure(_fit(part, name), compared)) for name in ("sts", "affine")}
    return "affine" if errors["affine"] < errors["sts"] else "sts"


def _measure(chosen: CalibrationMap, records: RecordSet) -> tuple[SlotMetrics, ...]:
    return tuple(slot_metrics(chosen.survival(records.logits), records))
