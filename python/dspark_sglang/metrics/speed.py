"""Tokens per second of users: the histogram and the attainment of each anchor, from spans.

Both weigh time, not spans: who waits twenty seconds for a token has not had one bad span but twenty bad seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark_sglang.metrics.definitions import USER_SPEED
from dspark_sglang.metrics.sheet import Sheet
from dspark_sglang.metrics.users import SPAN_S, Span


class Speed:
    """Counts spans.

    Parameters
    ----------
    sheet : Sheet
    """

    def __init__(self, sheet: Sheet) -> None:
        self._edges, self._anchors = np.array(sheet.edges[USER_SPEED]), np.array(sheet.sla)
        self._histogram, self._sla = sheet.view(USER_SPEED), sheet.view("dspark_sla_seconds_total")
        self._tokens = sheet.view("dspark_user_tokens_total")
        self._seconds = sheet.view("dspark_user_seconds_total")
        self._met, self._missed = sheet.index("met", "yes"), sheet.index("met", "no")

    def add(self, spans: Sequence[Span]) -> None:
        """Count spans that have ended."""
        if not spans:
            return
        self._tokens += sum(span.tokens for span in spans)
        self._seconds += sum(span.seconds for span in spans)
        whole = [span for span in spans if span.whole]
        seconds = np.array([span.seconds for span in whole])
        rates = np.array([span.tokens for span in whole]) / seconds
        # Bucket i holds (edge[i-1], edge[i]]; who gets an anchor exactly has got it.
        places, times = np.searchsorted(self._edges, rates, side="left"), np.maximum(seconds // SPAN_S, 1.0)
        self._histogram[:-1] += np.bincount(places, weights=times, minlength=len(self._edges) + 1)
        self._histogram[-1] += rates @ times
        met = rates >= self._anchors[:, None]
        self._sla[:, self._met] += met @ seconds
        self._sla[:, self._missed] += ~met @ seconds
