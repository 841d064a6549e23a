"""Seconds of one decode step, as a sum of terms that can each be measured (Sec. 5.2, and beyond its table SPS(B)).

The paper's table has one regressor, the verify tokens B. Its users met what it leaves out: the draft's own cost, the
context that attention reads, a prefill in the same step, and graphs that pad B. Each is a term here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.sps.curve import Curve


class StepTimes(Protocol):
    """What the planner asks of a step-time model, corrected online or not."""

    @property
    def tiers(self) -> NDArray[np.int64] | None:
        """Verify-token sizes at which graphs exist, int64 increasing; None without graphs."""

    def step_times(
        self, requests: int, gamma: int, context_tokens: int, prefill_tokens: int = 0, drafted: int | None = None
    ) -> NDArray[np.float64]:
        """Return float64 [R*gamma + 1]: seconds of a step that verifies R + k tokens, drafting included."""

    def plain_time(self, requests: int, context_tokens: int, prefill_tokens: int = 0) -> float:
        """Return the seconds of a step that decodes R tokens without drafting."""

    def draft_row_s(self, rows: int) -> float:
        """Return the seconds that one drafted row more or less costs around ``rows`` drafted rows."""


class _Steps:
    """0, 1, 2, ... as float64, grown on demand; a step's slope per token is a multiple of it."""

    values = np.arange(1024, dtype=np.float64)

    @classmethod
    def first(cls, count: int) -> NDArray[np.float64]:
        if count > cls.values.shape[0]:
            cls.values = np.arange(2 * count, dtype=np.float64)
        return cls.values[:count]


def assemble(curve: Curve, requests: int, gamma: int, constant_s: float, slope_s: float = 0.0) -> NDArray[np.float64]:
    """Return float64 [R*gamma + 1]: ``curve`` at R + k tokens, plus a constant, plus ``slope_s`` for each k."""
    count = requests * gamma + 1
    times = curve.window(requests, count)
    times += constant_s
    if slope_s:
        times += slope_s * _Steps.first(count)
    return times


@dataclass(frozen=True, eq=False)
class StepTimeModel:
    """The terms of a decode step, in seconds; measured by :func:`sgl_dspark.sps.fit.fit`, immutable.

    Attributes
    ----------
    verify : Curve
        Target verification against verify tokens B = R + K, anchors included, at no context. With ``stairs``, its knots
        are the graph tiers and each B costs what its tier costs.
    draft : Curve
        One draft pass against drafted rows, at no context.
    plain : Curve or None
        A step without drafting against requests, at no context; None: the verification of R tokens by R requests.
    verify_request_s : float
        Per request of a verification, whatever its tokens: what attention pays to begin a row.
    accept_s, accept_request_s, accept_token_s : float
        Acceptance and commit of a drafted step: constant, per request and per verify token.
    context_token_s : float
        Per context token of the batch (the sum over its requests), in every step: what attention reads.
    context_query_s : float
        Per context token and verify token of its request: what attention computes. A step at B tokens and C context
        tokens pays ``C * B / R`` of it, as if the verify tokens were spread evenly.
    draft_context_s : float
        Per context token of the drafted rows.
    prefill_token_s : float
        Per prompt token prefilled in the same step.
    host_s, host_request_s : float
        The host's share of any step: constant and per request. Zero from the start-up probes, which do not see it.
    """

    verify: Curve
    draft: Curve = field(default_factory=lambda: Curve([1], [0.0]))
    plain: Curve | None = None
    verify_request_s: float = 0.0
    accept_s: float = 0.0
    accept_request_s: float = 0.0
    accept_token_s: float = 0.0
    context_token_s: float = 0.0
    context_query_s: float = 0.0
    draft_context_s: float = 0.0
    prefill_token_s: float = 0.0
    host_s: float = 0.0
    host_request_s: float = 0.0
    token_curve: Curve = field(init=False, repr=False)
    plain_curve: Curve = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.verify.seconds[0] <= 0:
            raise ValueError("verification must take more than no time; probe the model again")
        for term in fields(self):
            if term.name.endswith("_s") and not 0 <= getattr(self, term.name) < np.inf:
                raise ValueError(f"{term.name} must be finite and at least 0, not {getattr(self, term.name)}")
        per_token = self.verify.seconds + self.accept_token_s * self.verify.sizes
        object.__setattr__(self, "token_curve", self.verify.replaced(per_token))
        object.__setattr__(self, "plain_curve", self.plain or self.verify)

    @property
    def tiers(self) -> NDArray[np.int64] | None:
        """Verify-token sizes at which graphs exist, int64 increasing; None without graphs."""
        return self.verify.sizes if self.verify.stairs else None

    @property
    def plain_request_s(self) -> float:
        """What a request adds to a plain step beyond :attr:`plain_curve`; nothing where plain steps were probed."""
        return self.verify_request_s if self.plain is None else 0.0

    def context_s(self, requests: int, tokens: int, context_tokens: int) -> float:
        """Return the seconds that ``context_tokens`` (sum over the batch) add to a step of ``tokens`` tokens."""
        return context_tokens * (self.context_token_s + self.context_query_s * tokens / requests)

    def beside_tokens_s(self, requests: int) -> float:
        """Return what verifying and accepting the drafts of R requests costs besides its tokens."""
        return self.accept_s + (self.accept_request_s + self.verify_request_s) * requests

    def draft_s(self, requests: int, drafted: int, context_tokens: int) -> float:
        """Return the seconds of the draft pass over ``drafted`` of R rows; 0 if none is drafted."""
        if drafted <= 0:
            return 0.0
        return self.draft.at(drafted) + self.draft_context_s * context_tokens * drafted / requests

    def step_times(
        self, requests: int, gamma: int, context_tokens: int, prefill_tokens: int = 0, drafted: int | None = None
    ) -> NDArray[np.float64]:
        """Return the time of a drafted step for every verify budget.

        Parameters
        ----------
        requests : int
            R >= 1.
        gamma : int
            Drafts per block.
        context_tokens : int
            Sum over the batch of the tokens already in the KV cache when the step starts.
        prefill_tokens : int
            Prompt tokens prefilled in the same step.
        drafted : int, optional
            Rows that are drafted, 0..R; all of them by default.

        Returns
        -------
        float64 [R*gamma + 1]
            Element k: seconds of a whole step that verifies R + k tokens, drafting included; non-decreasing.
        """
        constant = self.host_s + self.host_request_s * requests + self.beside_tokens_s(requests)
        constant += self.context_s(requests, requests, context_tokens) + self.prefill_token_s * prefill_tokens
        constant += self.draft_s(requests, requests if drafted is None else drafted, context_tokens)
        return assemble(self.token_curve, requests, gamma, constant, self.context_query_s * context_tokens / requests)

    def plain_time(self, requests: int, context_tokens: int, prefill_tokens: int = 0) -> float:
        """Return the seconds of a step that decodes R tokens without drafting; arguments as :meth:`step_times`."""
        seconds = self.plain_curve.at(requests) + self.plain_request_s * requests
        seconds += self.context_s(requests, requests, context_tokens)
        seconds += self.host_s + self.host_request_s * requests
        return seconds + self.prefill_token_s * prefill_tokens

    def draft_row_s(self, rows: int) -> float:
        """Return the seconds that one drafted row more or less costs around ``rows`` drafted rows."""
        return self.draft.slope(rows)
