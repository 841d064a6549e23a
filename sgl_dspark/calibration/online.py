"""Calibration while serving: recent rounds are kept, temperatures follow them, drift is noticed.

Everything is learned from outcomes of steps that have ended, so nothing here can look at a token of the step that is
being planned. Shape letters: R rounds of one step, G = gamma slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgl_dspark.calibration.kind import KindState, OnlineConfig
from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.records import KINDS

__all__ = ["ADJUSTED", "SERVED_KINDS", "FullLengthProbes", "OnlineCalibration", "OnlineConfig"]

# Requests whose law is not plain sampling's (penalties, grammars, seeds and the like): their acceptance teaches
# nothing about the others', is not stored, and does not stop the others from being planned.
ADJUSTED = len(KINDS)
SERVED_KINDS = (*KINDS, "adjusted")


class OnlineCalibration:
    """Keeps the calibration of greedy (row 0), sampled (1) and adjusted (2) requests in step with what is served.

    Attributes
    ----------
    inverse_temperatures, biases : float32 [3, G]
        Calibrated confidence is sigmoid(z * inverse_temperatures + biases). Updated in place: keep a reference.
    empirical : float32 [3, G]
        Running mean of survival per slot; what a request without history is taken for. Updated in place.
    skipped : int
        Rounds left out because a logit was not finite or the counts made no sense.

    Parameters
    ----------
    gamma : int
        G.
    greedy, sampled : CalibrationMap, optional
        Where to start, from ``calibration.json``; by default the identity, which is left sooner. Adjusted requests
        start where sampled ones do.
    config : OnlineConfig, optional
    """

    def __init__(
        self,
        gamma: int,
        greedy: CalibrationMap | None = None,
        sampled: CalibrationMap | None = None,
        config: OnlineConfig | None = None,
    ) -> None:
        self.gamma = gamma
        self.config = config or OnlineConfig()
        self.inverse_temperatures = np.ones((len(SERVED_KINDS), gamma), dtype=np.float32)
        self.biases = np.zeros((len(SERVED_KINDS), gamma), dtype=np.float32)
        self.empirical = np.zeros((len(SERVED_KINDS), gamma), dtype=np.float32)
        self.skipped = 0
        self.kinds = [KindState(gamma, start, self.config) for start in (greedy, sampled, sampled)]
        for index in range(len(SERVED_KINDS)):
            self._publish(index)

    def observe(self, logits: NDArray[np.float32], verified: ArrayLike, accepted: ArrayLike, kinds: ArrayLike) -> None:
        """Take the rounds of a step that has ended; now and then this refits (see `OnlineConfig`).

        Parameters
        ----------
        logits : float32 [R, G]
            Of the confidence head, before calibration.
        verified, accepted : int [R]
            As in `RecordSet`: 0 <= accepted <= verified <= G, cut where the request ended.
        kinds : int [R]
            0 greedy, 1 sampled, 2 adjusted.
        """
        verified_, accepted_ = np.asarray(verified), np.asarray(accepted)
        kind = np.asarray(kinds, dtype=np.intp)
        good = (accepted_ >= 0) & (accepted_ <= verified_) & (verified_ <= self.gamma)
        # A sum is not finite if any term is not, and costs one pass.
        good &= np.isfinite(logits.sum(axis=1))
        if not good.all():
            self.skipped += int(len(good) - good.sum())
            logits, verified_, accepted_, kind = logits[good], verified_[good], accepted_[good], kind[good]
        if not len(kind):
            return
        if (kind == kind[0]).all():
            self._add(int(kind[0]), logits, verified_, accepted_)
            return
        for index in range(len(SERVED_KINDS)):
            rows = kind == index
            self._add(index, logits[rows], verified_[rows], accepted_[rows])

    def flush(self) -> None:
        """Take waiting rounds into account now and refit every kind; for tests and replays."""
        for index, state in enumerate(self.kinds):
            state.absorb()
            state.refit()
            self._publish(index)

    def state(self, kind: int) -> str:
        """Return ``learning`` (too few rounds to tell), ``ok`` or ``drift`` for one kind of requests."""
        return self.kinds[kind].state

    @property
    def usable(self) -> bool:
        """False while greedy or sampled requests drift: predictions are then not to be relied on."""
        return all(state.state != "drift" for state in self.kinds[:ADJUSTED])

    def live_mean_ece(self, kind: int) -> float:
        """Return the mean over slots of recent ECE, less what chance adds; NaN before there is any evidence."""
        return self.kinds[kind].mean_ece

    def snapshot(self) -> dict[str, Any]:
        """Return what ``/dspark/state`` and metrics show, by kind, as plain values (None for unknown)."""
        shown: dict[str, Any] = {name: self.kinds[i].snapshot() for i, name in enumerate(SERVED_KINDS)}
        return {**shown, "skipped": self.skipped}

    def _add(self, index: int, logits: NDArray[np.float32], verified: NDArray[Any], accepted: NDArray[Any]) -> None:
        state = self.kinds[index]
        if len(logits) and state.add(logits, verified, accepted):
            self._publish(index)

    def _publish(self, index: int) -> None:
        state = self.kinds[index]
        self.inverse_temperatures[index] = state.inverse
        self.biases[index] = state.biases
        self.empirical[index] = state.empirical


_MOST_CREDIT = 2.0


@dataclass
class FullLengthProbes:
    """Decides which rounds are verified in full although the plan trims them, so that late slots stay observed.

    The choice depends on counts and the step number only, never on a token or a confidence, so it cannot bias outcomes.

    Attributes
    ----------
    max_share : float
        Extra tokens that probes may cost, as a share of all verify tokens, in [0, 1).
    verify_tokens, extra_tokens, probes : int
        Counters since the start: verify tokens of all steps, tokens that probes added, and probes.
    credit : float
        Tokens that probes may add now, at most two blocks.
    """

    gamma: int
    max_share: float = 0.01
    verify_tokens: int = 0
    extra_tokens: int = 0
    probes: int = 0
    credit: float = 0.0

    def full_length_probe(self, step: int, requests: int, verify_tokens: int) -> int:
        """Return the request, 0..requests-1, whose block is verified in full in this step, or -1.

        Parameters
        ----------
        step : int
            Number of the decode step.
        requests : int
            R of the step.
        verify_tokens : int
            B that the plan would verify, anchors included; counted.
        """
        self.verify_tokens += verify_tokens
        # What was not spent while nothing was trimmed must not be spent all at once when trimming begins.
        self.credit = min(self.credit + self.max_share * verify_tokens, _MOST_CREDIT * self.gamma)
        if requests < 1 or verify_tokens >= requests * (self.gamma + 1):
            return -1
        # The whole block is reserved, so the bound holds whatever the probe turns out to cost.
        if self.credit < self.gamma:
            return -1
        # Multiplying by the golden ratio visits all requests evenly, in no rhythm with their order.
        return int(step * 0.6180339887498949 % 1.0 * requests)

    def charge(self, extra_tokens: int) -> None:
        """Count a probe and the tokens that it added, 0..gamma."""
        self.probes += 1
        self.extra_tokens += extra_tokens
        self.credit -= extra_tokens

    @property
    def share(self) -> float:
        """Extra tokens over verify tokens so far."""
        return self.extra_tokens / self.verify_tokens if self.verify_tokens else 0.0
