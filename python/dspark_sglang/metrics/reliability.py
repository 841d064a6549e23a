"""Judged drafts by their confidence: what a reliability diagram and ECE over any window are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dspark_sglang.metrics.definitions import BINS
from dspark_sglang.metrics.sheet import Sheet
from sgl_dspark.calibration.online import SERVED_KINDS

# Gives inverse temperatures and biases, float32 [2, gamma] each, row 0 for greedy requests.
Scales = Callable[[], tuple[np.ndarray, np.ndarray]]


class Reliability:
    """Counts judged drafts by bins of calibrated confidence.

    Parameters
    ----------
    sheet : Sheet
    scales : callable, optional
        The calibration in force; by default confidences are taken as they are.
    """

    def __init__(self, sheet: Sheet, scales: Scales | None = None) -> None:
        self._slots = np.arange(sheet.gamma)
        self._judged = sheet.view("dspark_calibration_judged_total")
        self._accepted = sheet.view("dspark_calibration_accepted_total")
        self._confidence = sheet.view("dspark_calibration_confidence_total")
        ones = np.ones((len(SERVED_KINDS), sheet.gamma), np.float32)
        self._scales = scales or (lambda: (ones, ones * 0))
        self._then = self._copied()

    def add(self, seen: Sequence[tuple[np.ndarray, ...]]) -> None:
        """Count rounds: logits, verified, accepted and kinds of each step, as in `OnlineCalibration.observe`.

        They are judged by the calibration of the pass before this one: what was learned from them must not judge them.
        """
        inverse, biases = self._then
        self._then = self._copied()
        if not seen:
            return
        logits, verified, accepted, kinds = (np.concatenate(column) for column in zip(*seen, strict=True))
        with np.errstate(over="ignore"):
            confidence = 1.0 / (1.0 + np.exp(-(logits * inverse[kinds] + biases[kinds])))
        hits = self._slots < accepted[:, None]
        judged = (self._slots < verified[:, None]) & (self._slots <= accepted[:, None]) & np.isfinite(confidence)
        confidence, hits = confidence[judged], hits[judged]
        bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
        self._judged += np.bincount(bins, minlength=BINS)
        self._accepted += np.bincount(bins, weights=hits, minlength=BINS)
        self._confidence += np.bincount(bins, weights=confidence, minlength=BINS)

    def _copied(self) -> tuple[np.ndarray, np.ndarray]:
        inverse, biases = self._scales()
        return inverse.copy(), biases.copy()
