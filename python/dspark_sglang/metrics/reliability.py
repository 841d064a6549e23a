"""Judged drafts by their confidence: what a reliability diagram and ECE over any window are made from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dspark_sglang.metrics.definitions import BINS
from dspark_sglang.metrics.sheet import Sheet

# Rounds taken of one step, evenly and in turn; more would tell no more and cost more.
MOST_ROWS = 16
PORTION = 128

Calibrate = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Reliability:
    """Counts judged drafts by bins of calibrated confidence, in portions of rounds.

    Parameters
    ----------
    sheet : Sheet
    gamma : int
    """

    def __init__(self, sheet: Sheet, gamma: int) -> None:
        self._slots = np.arange(gamma)
        self._judged = sheet.view("dspark_calibration_judged_total")
        self._accepted = sheet.view("dspark_calibration_accepted_total")
        self._confidence = sheet.view("dspark_calibration_confidence_total")
        self._waiting: list[tuple[np.ndarray, ...]] = []
        self._rows = self._turn = 0

    def add(
        self,
        calibrate: Calibrate,
        logits: np.ndarray,
        verified: np.ndarray,
        accepted: np.ndarray,
        sampled: np.ndarray,
    ) -> None:
        """Take some rounds of a step; see `RoundLog.append` for the arrays, `Knowledge.calibrated` for the function."""
        stride = -(-len(logits) // MOST_ROWS)
        if stride > 1:
            self._turn = (self._turn + 1) % stride
            some = slice(self._turn, None, stride)
            logits, verified, accepted, sampled = logits[some], verified[some], accepted[some], sampled[some]
        # Calibrated as of now: what is learned from a round must not judge it.
        self._waiting.append((calibrate(logits, sampled), verified, accepted))
        self._rows += len(logits)
        if self._rows >= PORTION:
            self.digest()

    def digest(self) -> None:
        """Count the rounds that wait."""
        if not self._waiting:
            return
        scaled, verified, accepted = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        self._waiting, self._rows = [], 0
        with np.errstate(over="ignore"):
            confidence = 1.0 / (1.0 + np.exp(-scaled))
        hits = self._slots < accepted[:, None]
        judged = (self._slots < verified[:, None]) & (self._slots <= accepted[:, None]) & np.isfinite(confidence)
        confidence, hits = confidence[judged], hits[judged]
        bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
        self._judged += np.bincount(bins, minlength=BINS)
        self._accepted += np.bincount(bins, weights=hits, minlength=BINS)
        self._confidence += np.bincount(bins, weights=confidence, minlength=BINS)
