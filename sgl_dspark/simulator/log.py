"""What happened in one simulated run: a row per request and a row per decode step."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from sgl_dspark.simulator.arrivals import Floats, Ints


class StepRow(NamedTuple):
    """One decode step.

    ``end_s`` and ``seconds``: when it ended and how long it took. ``requests``: R. ``drafted``: requests that drafted,
    0 for a plain step. ``verified``: drafts verified, anchors excluded. ``correct``: drafts accepted. ``emitted``:
    tokens handed out, bonus included, cut at the end of an output. The last two are the planner's expectation.
    """

    end_s: float
    seconds: float
    requests: int
    drafted: int
    verified: int
    correct: int
    emitted: int
    predicted_tokens: float
    predicted_s: float


class Log:
    """Record of one run.

    Attributes
    ----------
    arrival_s, admitted_s, first_token_s, finish_s : float64 [N]
        When each request came, got its slot, emitted its first token (by prefill) and its last.
    emitted_tok : int64 [N]
        Tokens that it emitted.
    fallbacks : Counter of str
        Steps per named fallback of the planner.
    prefill_busy_s : float
        Seconds of prefill steps.
    prefill_tok : int
        Tokens that prefill emitted: one a request.
    end_s : float
        When the last request was complete.
    """

    def __init__(self, count: int) -> None:
        self.arrival_s: Floats = np.full(count, np.nan)
        self.admitted_s: Floats = np.full(count, np.nan)
        self.first_token_s: Floats = np.full(count, np.nan)
        self.finish_s: Floats = np.full(count, np.nan)
        self.emitted_tok: Ints = np.zeros(count, dtype=np.int64)
        self.fallbacks: Counter[str] = Counter()
        self.prefill_busy_s = 0.0
        self.prefill_tok = 0
        self.end_s = 0.0
        self._rows: list[StepRow] = []

    def prefill(self, seconds: float, tokens: int) -> None:
        """Add a prefill step that took ``seconds`` and emitted ``tokens``."""
        self.prefill_busy_s += seconds
        self.prefill_tok += tokens

    def decode(self, row: StepRow, fallback: str) -> None:
        """Add a decode step and the fallback that it took, "" for none."""
        self._rows.append(row)
        if fallback:
            self.fallbacks[fallback] += 1

    def close(self, arrival_s: Floats, end_s: float) -> None:
        """End the run: in a closed loop arrivals are known only now."""
        self.arrival_s, self.end_s = arrival_s, end_s

    def column(self, name: str) -> Floats:
        """Return one field of every decode step, float64 [steps]."""
        at = StepRow._fields.index(name)
        return np.array([row[at] for row in self._rows], dtype=np.float64)
