"""What the online correction may change about a step-time model: the regressors of one step.

Each is in seconds, so that its coefficient is a share: how much of the model's own term, or of a typical step, to add.

====================  =====  ======  =============================================================
coefficient           prior  spread  regressor
====================  =====  ======  =============================================================
scale                 1      0.3     everything the model predicts
host                  0      1       a typical step
host per request      0      0.05    a typical step, times R
drafted               0      0.5     a typical step, in drafted steps
drafted per row       0      0.03    a typical step, times the drafted rows
draft                 0      0.5     the draft pass
context               0      0.5     what the context costs
prefill               0      2       a typical step, in steps with a prefill
prefill per token     0      1       what the prefill costs
tokens 1, 2, 4, ...   0      0.15    the cost of the tokens, near that number of verify tokens
requests 1, 4, ...    0      0.1     the cost of R tokens, near that R, in drafted steps
====================  =====  ======  =============================================================

A typical step is the model's plain step of one request. "Near" is a triangle on the logarithm of the number, so that
what is learnt at one load fades into its neighbours; the spreads say how much rather the common scale takes the blame.
"""

from __future__ import annotations

from math import log2

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.sps.model import StepTimeModel

SCALE, HOST, HOST_REQUEST, DRAFTED, DRAFTED_ROW, DRAFT, CONTEXT, PREFILL, PREFILL_TOKEN, FIRST_TENT = range(10)
_SPREADS = (0.3, 1.0, 0.05, 0.5, 0.03, 0.5, 0.5, 2.0, 1.0)
_TOKEN_SPREAD, _REQUEST_SPREAD = 0.15, 0.1
_TOKEN_OCTAVES, _REQUEST_OCTAVES = 1.0, 2.0
_TOKEN_TENTS, _REQUEST_TENTS = 14, 6


class Terms:
    """Regressors and priors of the correction of one model; holds a buffer, so one caller at a time."""

    def __init__(self, model: StepTimeModel) -> None:
        self.model = model
        self.typical_s = model.plain_time(1, 0)
        self.requests_at = FIRST_TENT + _TOKEN_TENTS
        self.count = self.requests_at + _REQUEST_TENTS
        self._x = np.zeros(self.count)
        self.knot_tents = np.zeros((model.token_curve.sizes.shape[0], _TOKEN_TENTS))
        for row, size in enumerate(model.token_curve.sizes.tolist()):
            self._tent(self.knot_tents[row], size, 1.0, _TOKEN_OCTAVES, 0, _TOKEN_TENTS)

    def prior(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation, float64 [P] each."""
        mean = np.zeros(self.count)
        mean[SCALE] = 1.0
        spread = np.concatenate(
            (_SPREADS, np.full(_TOKEN_TENTS, _TOKEN_SPREAD), np.full(_REQUEST_TENTS, _REQUEST_SPREAD))
        )
        return mean, spread

    def shift_width(self, common: bool) -> NDArray[np.float64]:
        """Return float64 [P]: how far coefficients may have moved when the level shifts, as shares of their spreads.

        Whatever the cause, drafting may have changed by itself; the profile over tokens and requests hardly does when
        the cause is ``common`` to both modes.
        """
        width = np.full(self.count, 0.1 if common else 0.5)
        width[[DRAFTED, DRAFTED_ROW, DRAFT]] = 0.5
        return width

    @staticmethod
    def _tent(row: NDArray[np.float64], number: int, height: float, octaves: float, start: int, tents: int) -> None:
        place = log2(number) / octaves
        left = min(int(place), tents - 1)
        share = min(place - left, 1.0)
        row[start + left] = height * (1.0 - share) if left < tents - 1 else height
        if left < tents - 1:
            row[start + left + 1] = height * share

    def token_share(self, theta: NDArray[np.float64], tokens: int) -> float:
        """Return the correction of the token cost at ``tokens`` beyond the common scale."""
        place = log2(tokens) / _TOKEN_OCTAVES
        left = min(int(place), _TOKEN_TENTS - 2)
        share = min(place - left, 1.0)
        tents = theta[FIRST_TENT : self.requests_at]
        return float(tents[left] * (1.0 - share) + tents[left + 1] * share)

    def request_share(self, theta: NDArray[np.float64], requests: int) -> float:
        """Return the correction of drafted steps at ``requests``, a share of the cost of R tokens."""
        place = log2(requests) / _REQUEST_OCTAVES
        left = min(int(place), _REQUEST_TENTS - 2)
        share = min(place - left, 1.0)
        tents = theta[self.requests_at :]
        return float(tents[left] * (1.0 - share) + tents[left + 1] * share)

    def of_step(
        self, requests: int, budget: int, drafted: int, context_tokens: int, prefill_tokens: int
    ) -> NDArray[np.float64]:
        """Return the regressors of a step, float64 [P]; valid until the next call.

        Parameters
        ----------
        requests, budget : int
            R >= 1 and K, anchors excluded.
        drafted : int
            Rows drafted; 0 for a plain step.
        context_tokens, prefill_tokens : int
            Sums over the batch.
        """
        model, x = self.model, self._x
        x.fill(0.0)
        tokens = requests + budget
        curve = model.token_curve if drafted else model.plain_curve
        token_s = curve.at(tokens)
        context_s = model.context_s(requests, tokens, context_tokens)
        prefill_s = model.prefill_token_s * prefill_tokens
        whole = token_s + context_s + prefill_s + model.host_s + model.host_request_s * requests
        if not drafted:
            whole += model.plain_request_s * requests
        else:
            draft_s = model.draft_s(requests, drafted, context_tokens)
            whole += draft_s + model.beside_tokens_s(requests)
            x[DRAFTED] = self.typical_s
            x[DRAFTED_ROW] = self.typical_s * drafted
            x[DRAFT] = draft_s
            self._tent(x, requests, curve.at(requests), _REQUEST_OCTAVES, self.requests_at, _REQUEST_TENTS)
        x[SCALE] = whole
        x[HOST] = self.typical_s
        x[HOST_REQUEST] = self.typical_s * requests
        x[CONTEXT] = context_s
        if prefill_tokens:
            x[PREFILL] = self.typical_s
            x[PREFILL_TOKEN] = prefill_s
        self._tent(x, tokens, token_s, _TOKEN_OCTAVES, FIRST_TENT, _TOKEN_TENTS)
        return x
