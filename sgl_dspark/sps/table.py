"""The paper's table: engine steps per second against verify tokens B, and nothing else (Algorithm 1, Sec. 3.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimes, assemble


class SpsTable:
    """SPS(B), profiled once: the special case of a step-time model with one regressor.

    Between profiled sizes the rate is that of the next size at or above, so that it is never better than measured.
    (SGLang's own table takes the next below, and keeps the last one's rate beyond the table: free tokens.) Beyond the
    last size the step time grows as :class:`~sgl_dspark.sps.curve.Curve` says.

    Parameters
    ----------
    verify_tokens : int [N], N >= 1
        Strictly increasing B, anchors included, at least 1.
    steps_per_s : float [N]
        Above 0, finite, non-increasing.

    Raises
    ------
    ValueError
        If the arrays are not as described; make a measured table monotone with :func:`sgl_dspark.sps.fit.isotonic`.
    """

    def __init__(self, verify_tokens: ArrayLike, steps_per_s: ArrayLike) -> None:
        rates = np.asarray(steps_per_s, dtype=np.float64)
        if not bool(np.all(np.isfinite(rates))) or bool(np.any(rates <= 0)):
            raise ValueError("steps per second must be finite and above 0")
        self._curve = Curve(verify_tokens, 1.0 / rates, stairs=True)

    @classmethod
    def of_model(
        cls, model: StepTimes, requests: int, gamma: int, context_tokens: int, prefill_tokens: int = 0
    ) -> SpsTable:
        """Return the table that a model amounts to at one R and context: B = R .. R*(gamma + 1), drafting included."""
        times = model.step_times(requests, gamma, context_tokens, prefill_tokens)
        return cls(np.arange(requests, requests + times.shape[0]), 1.0 / times)

    @property
    def tiers(self) -> None:
        """A table knows of no graphs."""
        return

    def sps(self, verify_tokens: int) -> float:
        """Return steps per second at B >= 1 verify tokens."""
        return 1.0 / self._curve.at(verify_tokens)

    def step_times(
        self, requests: int, gamma: int, context_tokens: int = 0, prefill_tokens: int = 0, drafted: int | None = None
    ) -> NDArray[np.float64]:
        """Return float64 [R*gamma + 1]: 1 / SPS(R + k); context, prefill and drafted rows have no say."""
        return assemble(self._curve, requests, gamma, 0.0)

    def plain_time(self, requests: int, context_tokens: int = 0, prefill_tokens: int = 0) -> float:
        """Return 1 / SPS(R): a table cannot tell a step without drafting from one that verifies no draft."""
        return self._curve.at(requests)

    def draft_row_s(self, rows: int) -> float:
        """Return 0: a table does not know what drafting costs."""
        return 0.0
