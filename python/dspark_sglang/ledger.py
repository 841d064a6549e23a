"""Totals and the last decisions of a worker: predicted beside actual, for ``/dspark/state`` and for metrics."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dspark_sglang.step import Step

LAST_DECISIONS = 64
# Steps that a median or a ratio of predicted to actual looks back on.
WINDOW = 512
SUMS = (
    "timed_s",
    "predicted_s",
    "predicted_actual_s",
    "ranked_tokens",
    "ranked_actual_tokens",
    "planned_tokens",
    "planned_actual_tokens",
)


class Ledger:
    """Counts what happened since the start; see `state` for the names.

    Parameters
    ----------
    gamma : int
    """

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma
        self.fallbacks: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        # Beside each prediction what it came to, over the steps that have one.
        self._sums = dict.fromkeys(SUMS, 0.0)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=LAST_DECISIONS)
        self._by_step: dict[int, dict[str, Any]] = {}
        # Planned, ranked and actual tokens of recent steps, of the same requests.
        self._tokens: deque[tuple[float, float, int]] = deque(maxlen=WINDOW)
        self._time_errors: deque[float] = deque(maxlen=WINDOW)
        self._accepted_at = np.zeros(gamma, np.int64)
        self._verified_at = np.zeros(gamma, np.int64)
        self._slots = np.arange(gamma)

    def prefill(self, tokens: int) -> None:
        """Count one prefill step."""
        self.totals["prefill_steps"] += 1
        self.totals["prefill_tokens"] += tokens

    def decided(self, step: Step) -> None:
        """Note a decode step that was launched."""
        assert step.lens is not None
        requests, drafts, decision = len(step.lens), int(step.lens.sum()), step.decision
        drafted = 0 if not step.drafts else requests if step.drafted is None else len(step.drafted)
        totals = self.totals
        totals["steps"] += 1
        totals["drafted_steps" if step.drafts else "plain_steps"] += 1
        totals["rounds"] += requests
        totals["drafted_rounds"] += drafted
        totals["verify_tokens"] += requests + drafts
        entry = {
            "step": step.number,
            "requests": requests,
            "drafted": drafted,
            "budget": decision.budget,
            "verify_tokens": requests + drafts,
            "planned_tokens": _number(decision.expected_tokens),
            "ranked_tokens": _number(float(step.expected.sum())) if step.expected is not None else None,
            "gain": _number(decision.gain),
            "reason": decision.reason,
            "tokens": None,
            "predicted_s": None,
            "actual_s": None,
        }
        self._decisions.append(entry)
        self._by_step[step.number] = entry
        # Verdicts come a step or two later; what never gets one must not pile up.
        self._by_step.pop(step.number - WINDOW, None)

    def timed(self, step: Step, predicted_s: float, seconds: float) -> None:
        """Note what a decode step took, until the start of the next."""
        self.totals["timed_steps"] += 1
        self._sums["timed_s"] += seconds
        if predicted_s > 0:
            self._sums["predicted_s"] += predicted_s
            self._sums["predicted_actual_s"] += seconds
            self._time_errors.append(abs(predicted_s / seconds - 1.0))
        entry = self._by_step.get(step.number)
        if entry is not None:
            entry["predicted_s"], entry["actual_s"] = _number(predicted_s), seconds

    def verdict(self, step: Step, accepted: np.ndarray, alive: np.ndarray) -> None:
        """Note what a step emitted; ``accepted`` int [R] correct drafts, ``alive`` bool [R] requests still running."""
        assert step.lens is not None
        lens, accepted = step.lens[alive], accepted[alive]
        tokens = int(accepted.sum()) + len(accepted)
        self.totals["tokens"] += tokens
        self.totals["drafts_verified"] += int(lens.sum())
        self.totals["drafts_accepted"] += int(accepted.sum())
        self.totals["live_rounds"] += len(accepted)
        entry = self._by_step.get(step.number)
        if entry is not None:
            entry["tokens"] = tokens
        if not step.drafts:
            return
        self._verified_at += (self._slots < lens[:, None]).sum(axis=0)
        self._accepted_at += (self._slots < accepted[:, None]).sum(axis=0)
        if step.expected is not None and alive.all():
            planned, ranked = step.decision.expected_tokens, float(step.expected.sum())
            self._tokens.append((planned, ranked, tokens))
            self._sums["ranked_tokens"] += ranked
            self._sums["ranked_actual_tokens"] += tokens
            if np.isfinite(planned):
                self._sums["planned_tokens"] += planned
                self._sums["planned_actual_tokens"] += tokens

    def state(self) -> dict[str, Any]:
        """Return totals, last decisions and predicted against actual, as JSON values."""
        totals = self.totals
        rounds, live = totals["rounds"], totals["live_rounds"]
        shown: dict[str, float] = {
            name: totals[name]
            for name in (
                "steps",
                "drafted_steps",
                "plain_steps",
                "rounds",
                "drafted_rounds",
                "live_rounds",
                "verify_tokens",
                "drafts_verified",
                "drafts_accepted",
                "tokens",
                "prefill_steps",
                "prefill_tokens",
                "timed_steps",
            )
        }
        shown.update(self._sums)
        return {
            "totals": shown,
            "mean_verify_len": totals["verify_tokens"] / rounds if rounds else None,
            "mean_accept_len": totals["tokens"] / live if live else None,
            "survival": _shares(self._accepted_at, self._verified_at),
            "predicted": self._predicted(),
            "decisions": list(self._decisions),
        }

    def _predicted(self) -> dict[str, Any]:
        """Ratios of predicted to actual over the last steps; None before there are any."""
        tokens = np.array(self._tokens).reshape(-1, 3)
        planned = tokens[np.isfinite(tokens[:, 0])]
        return {
            "steps": len(tokens),
            "tokens_ratio": _number(tokens[:, 1].sum() / tokens[:, 2].sum()) if len(tokens) else None,
            "planned_tokens_ratio": _number(planned[:, 0].sum() / planned[:, 2].sum()) if len(planned) else None,
            "step_time_error": float(np.median(self._time_errors)) if self._time_errors else None,
        }


def _number(value: float) -> float | None:
    """Return a value that JSON has."""
    return float(value) if np.isfinite(value) else None


def _shares(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    return [float(p / w) if w else None for p, w in zip(part, whole, strict=True)]
