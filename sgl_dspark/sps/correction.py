"""The answers of a step-time model under one set of learnt coefficients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.sps import terms as t
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel, assemble

_SHARE_LEAST, _SHARE_MOST = 0.02, 50.0


class Correction:
    """Coefficients, bounded so that every answer is a time: above 0, and not falling with tokens.

    Made anew for each set of coefficients: the token curve is corrected at its knots only, so this costs some
    microseconds, and an answer no more than the uncorrected model's.

    Parameters
    ----------
    terms : Terms
        What the coefficients mean.
    theta : float64 [P]
        The coefficients; copied.
    """

    def __init__(self, terms: t.Terms, theta: NDArray[np.float64]) -> None:
        self._terms, self._model = terms, terms.model
        self._theta = theta.copy()
        values: list[float] = theta[: t.FIRST_TENT].tolist()
        typical = terms.typical_s
        scale = values[t.SCALE]
        shares = scale + terms.knot_tents @ theta[t.FIRST_TENT : terms.requests_at]
        # np.clip takes three times as long.
        shares = np.minimum(np.maximum(shares, _SHARE_LEAST), _SHARE_MOST)
        self._curve = self._model.token_curve.replaced(self._model.token_curve.seconds * shares)
        self._scale = max(scale, _SHARE_LEAST)
        self._host_s = values[t.HOST] * typical
        self._host_request_s = values[t.HOST_REQUEST] * typical
        self._drafted_s = values[t.DRAFTED] * typical
        self._drafted_row_s = values[t.DRAFTED_ROW] * typical
        self._draft_share = max(scale + values[t.DRAFT], _SHARE_LEAST)
        self._context_share = max(scale + values[t.CONTEXT], _SHARE_LEAST)
        self._prefill_s = values[t.PREFILL] * typical
        self._prefill_share = max(scale + values[t.PREFILL_TOKEN], _SHARE_LEAST)

    def _common_s(self, requests: int, context_tokens: int, prefill_tokens: int) -> float:
        """Return what plain and drafted steps share, besides their R tokens."""
        model = self._model
        seconds = self._scale * (model.host_s + model.host_request_s * requests)
        seconds += self._host_s + self._host_request_s * requests
        seconds += self._context_share * model.context_s(requests, requests, context_tokens)
        if prefill_tokens:
            seconds += self._prefill_s + self._prefill_share * model.prefill_token_s * prefill_tokens
        return seconds

    def _drafting_s(self, requests: int, drafted: int, context_tokens: int) -> float:
        """Return what a drafted step adds, besides its K tokens."""
        model = self._model
        seconds = self._scale * model.beside_tokens_s(requests) + self._drafted_s
        seconds += self._draft_share * model.draft_s(requests, drafted, context_tokens) + self._drafted_row_s * drafted
        return seconds + self._terms.request_share(self._theta, requests) * model.token_curve.at(requests)

    def _constant_s(self, requests: int, drafted: int, context_tokens: int, prefill_tokens: int) -> float:
        """Return everything of a drafted step that does not depend on K, bounded so that no step is free."""
        seconds = self._common_s(requests, context_tokens, prefill_tokens)
        seconds += self._drafting_s(requests, drafted, context_tokens)
        return max(seconds, -(1.0 - _SHARE_LEAST) * self._curve.at(requests))

    def _token_slope_s(self, requests: int, context_tokens: int) -> float:
        return self._context_share * self._model.context_query_s * context_tokens / requests

    def step_times(
        self, requests: int, gamma: int, context_tokens: int, prefill_tokens: int, drafted: int | None
    ) -> NDArray[np.float64]:
        """Return float64 [R*gamma + 1], non-decreasing, above 0; see :meth:`StepTimeModel.step_times`."""
        constant = self._constant_s(requests, requests if drafted is None else drafted, context_tokens, prefill_tokens)
        return assemble(self._curve, requests, gamma, constant, self._token_slope_s(requests, context_tokens))

    def plain_time(self, requests: int, context_tokens: int, prefill_tokens: int) -> float:
        """Return the seconds of a step without drafting, above 0; see :meth:`StepTimeModel.plain_time`."""
        token_s = self._plain_s(requests)
        return max(token_s + self._common_s(requests, context_tokens, prefill_tokens), _SHARE_LEAST * token_s)

    def _plain_s(self, requests: int) -> float:
        """Return what a plain step costs besides host, context and prefill."""
        share = float(self._theta[t.SCALE]) + self._terms.token_share(self._theta, requests)
        seconds = min(max(share, _SHARE_LEAST), _SHARE_MOST) * self._model.plain_curve.at(requests)
        return seconds + self._scale * self._model.plain_request_s * requests

    def predict(self, requests: int, budget: int, drafted: int, context_tokens: int, prefill_tokens: int) -> float:
        """Return the seconds of one step; ``drafted`` 0 for a plain one."""
        if not drafted:
            return self.plain_time(requests, context_tokens, prefill_tokens)
        seconds = self._curve.at(requests + budget)
        seconds += self._constant_s(requests, drafted, context_tokens, prefill_tokens)
        return seconds + self._token_slope_s(requests, context_tokens) * budget

    def draft_row_s(self, rows: int) -> float:
        """Return the seconds that one drafted row more or less costs around ``rows`` drafted rows, at least 0."""
        return max(self._draft_share * self._model.draft_row_s(rows) + self._drafted_row_s, 0.0)

    def summary(self) -> dict[str, float]:
        """Return the learnt terms: scales of the model's own, and seconds that it did not have."""
        return {
            "scale": self._scale,
            "draft_scale": self._draft_share,
            "context_scale": self._context_share,
            "prefill_scale": self._prefill_share,
            "host_s": self._host_s,
            "host_request_s": self._host_request_s,
            "drafted_s": self._drafted_s,
            "drafted_row_s": self._drafted_row_s,
        }

    def to_model(self) -> StepTimeModel:
        """Return the corrected terms as a model.

        Its draft curve carries what was learnt of drafted steps by number of requests, as if all rows were drafted;
        what a step with a prefill costs apart from its tokens is left out.
        """
        model = self._model
        most = max(int(model.draft.sizes[-1]), int(model.plain_curve.sizes[-1]))
        octaves = 2 ** np.arange(most.bit_length())
        rows = np.union1d(model.draft.sizes, octaves)
        requests = np.union1d(model.plain_curve.sizes, octaves)
        bare_accept = self._scale * (model.accept_s + (model.accept_request_s + model.verify_request_s) * rows)
        drafting = np.array([self._drafting_s(row, row, 0) for row in rows.tolist()]) - bare_accept
        plain = np.array([self._plain_s(size) for size in requests.tolist()])
        # Terms of a model are not negative: what the host seems to give back is taken from the token costs.
        refund_s, refund_request_s = min(self._host_s, 0.0), min(self._host_request_s, 0.0)
        plain = np.maximum(plain + refund_s + refund_request_s * requests, _SHARE_LEAST * plain)
        verify = np.maximum(self._curve.seconds + refund_s, _SHARE_LEAST * self._curve.seconds)
        return StepTimeModel(
            verify=self._curve.replaced(verify),
            draft=Curve(rows, np.maximum.accumulate(np.maximum(drafting + refund_request_s * rows, 0.0))),
            plain=Curve(requests, np.maximum.accumulate(plain), stairs=model.plain_curve.stairs),
            verify_request_s=self._scale * model.verify_request_s,
            accept_s=self._scale * model.accept_s,
            accept_request_s=self._scale * model.accept_request_s,
            context_token_s=self._context_share * model.context_token_s,
            context_query_s=self._context_share * model.context_query_s,
            draft_context_s=self._draft_share * model.draft_context_s,
            prefill_token_s=self._prefill_share * model.prefill_token_s,
            host_s=self._scale * model.host_s + max(self._host_s, 0.0),
            host_request_s=self._scale * model.host_request_s + max(self._host_request_s, 0.0),
        )
