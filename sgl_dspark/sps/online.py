"""The step-time model while serving: corrected by every step, not moved by outliers, following what stays.

The start-up model does not see the host's share (scheduling, streaming), and the machine may slow down. Each decode
step gives one number, its wall time, from which the terms of :mod:`sgl_dspark.sps.terms` are corrected.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.sps.correction import Correction
from sgl_dspark.sps.filter import RobustFilter
from sgl_dspark.sps.model import StepTimeModel
from sgl_dspark.sps.terms import SCALE, Terms

_WARM_UP = 5
_WARM_UP_OUTLIER = 4.0
_NOISE_START, _NOISE_LEAST, _NOISE_MOST = 0.1, 0.02, 0.3
_NOISE_WINDOW, _NOISE_EVERY = 64, 16
_ERROR_WINDOW = 128
_SHIFT_WINDOW, _SHIFT_COUNT = 8, 6
_SHIFT_SELDOM, _SHIFT_APART = 3, 32
_BIAS_WINDOW, _BIAS_EVERY = 12, 4
_BIAS_LEAST, _BIAS_NOISE = 0.1, 1.25
_EXPECTED_LEAST = 0.02


class _Mode:
    """The last verdicts on steps of one mode (plain or drafted): log ratio, 0 if accepted, and when."""

    def __init__(self) -> None:
        self.verdicts: deque[tuple[float, int]] = deque(maxlen=_SHIFT_WINDOW)
        self.ratios: deque[float] = deque(maxlen=_BIAS_WINDOW)
        self.last_accepted = (0, 0.0)

    def shifted(self) -> tuple[float, int]:
        """Return the median log ratio of the rejected steps and when they began, if they show a level shift; else 0, 0.

        They do if most of the last steps were rejected on the same side. A mode that is seldom seen need not wait for
        so many: three in a row, too far apart to share one disturbance, are enough.
        """
        for side in (1.0, -1.0):
            outside = [verdict for verdict in self.verdicts if verdict[0] * side > 0][-_SHIFT_COUNT:]
            if len(outside) < _SHIFT_COUNT:
                outside = list(self.verdicts)[-_SHIFT_SELDOM:]
                apart = outside[-1][1] - outside[0][1] >= _SHIFT_APART
                if len(outside) < _SHIFT_SELDOM or not apart or any(ratio * side <= 0 for ratio, _ in outside):
                    continue
            return float(np.median([ratio for ratio, _ in outside])), outside[0][1]
        return 0.0, 0


class OnlineStepTime:
    """A :class:`StepTimeModel` corrected in place; answers the same questions.

    Parameters
    ----------
    model : StepTimeModel
        The prior: from start-up probes or from a stored profile.

    Attributes
    ----------
    observations, rejected, shifts : int
        Steps seen, steps taken for outliers, level shifts followed.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self.model = model
        self.observations = self.rejected = self.shifts = 0
        self._terms = Terms(model)
        self._filter = RobustFilter(*self._terms.prior())
        self._warm_up: list[tuple[tuple[int, int, int, int, int], float]] | None = []
        self._log_ratios: deque[float] = deque(maxlen=_NOISE_WINDOW)
        self._errors: deque[float] = deque(maxlen=_ERROR_WINDOW)
        self._noise = _NOISE_START
        self._modes = {False: _Mode(), True: _Mode()}
        self._made: Correction | None = None

    @property
    def _correction(self) -> Correction:
        """What the coefficients come to, made when it is asked for: a step may be learnt from and not priced."""
        if self._made is None:
            self._made = Correction(self._terms, self._filter.theta)
        return self._made

    @property
    def tiers(self) -> NDArray[np.int64] | None:
        """Verify-token sizes at which graphs exist, int64 increasing; None without graphs."""
        return self.model.tiers

    @property
    def error_median(self) -> float:
        """Median of abs(predicted / actual - 1) over the last 128 steps, each predicted before it was learnt from.

        Not a number before the first step.
        """
        return float(np.median(self._errors)) if self._errors else float("nan")

    def observe(
        self, requests: int, budget: int, drafted: int, context_tokens: int, prefill_tokens: int, seconds: float
    ) -> None:
        """Learn from one finished decode step.

        Parameters
        ----------
        requests, budget : int
            R, and the K that was verified (anchors excluded).
        drafted : int
            Rows that were drafted; 0 for a plain step.
        context_tokens, prefill_tokens : int
            As in :meth:`step_times`, of that step.
        seconds : float
            From the start of that decode step to the start of the next. Not positive or not finite: ignored.
        """
        if requests < 1 or not 0 < seconds < np.inf:
            return
        step = (requests, max(budget, 0), max(drafted, 0), context_tokens, prefill_tokens)
        self.observations += 1
        if self._warm_up is None:
            self._learn(step, seconds)
        else:
            self._collect(step, seconds)
        self._made = None

    def _collect(self, step: tuple[int, int, int, int, int], seconds: float) -> None:
        """Hold back the first steps until an outlier among them can be told, since the prior's gate is wide."""
        assert self._warm_up is not None
        self._errors.append(abs(self.predict(*step) / seconds - 1.0))
        self._warm_up.append((step, seconds))
        if len(self._warm_up) < _WARM_UP:
            return
        held, self._warm_up = self._warm_up, None
        ratios = np.array([seconds / self.predict(*step) for step, seconds in held])
        for (step, seconds), ratio in zip(held, ratios.tolist(), strict=True):
            if ratio <= _WARM_UP_OUTLIER * float(np.median(ratios)):
                self._learn(step, seconds, count_error=False)
            else:
                self.rejected += 1

    def _learn(self, step: tuple[int, int, int, int, int], seconds: float, count_error: bool = True) -> None:
        x = self._terms.of_step(*step)
        expected = max(self._filter.predict(x), _EXPECTED_LEAST * float(x[SCALE]))
        if count_error:
            self._errors.append(abs(self.predict(*step) / seconds - 1.0))
        ratio = float(np.log(seconds / expected))
        verdict = self._filter.update(x, seconds, self._noise * expected)
        if step[4]:
            # A prefill's own time is uncertain: it says nothing about the noise or the level of decode steps.
            self.rejected += verdict == "rejected"
            return
        self._log_ratios.append(ratio)
        if len(self._log_ratios) >= _NOISE_EVERY and self.observations % _NOISE_EVERY == 0:
            # Around their median: a level that has just shifted is not noise.
            ratios = np.array(self._log_ratios)
            spread = 1.4826 * float(np.median(np.abs(ratios - np.median(ratios))))
            self._noise = min(max(spread, _NOISE_LEAST), _NOISE_MOST)
        level, alone = self._judge(bool(step[2]), ratio, verdict == "rejected")
        if level and alone:
            # What the rejected steps have in common is no outlier.
            self._filter.update(x, expected * float(np.exp(level)), self._noise * expected, trusted=True)

    def _judge(self, drafted: bool, ratio: float, rejected: bool) -> tuple[float, bool]:
        """Tell outliers from a level shift, and follow it.

        Returns
        -------
        level : float
            Log ratio by which the rejected steps are off, 0 if there is no shift.
        alone : bool
            Whether the shift is this mode's own.
        """
        mode, other = self._modes[drafted], self._modes[not drafted]
        mode.verdicts.append((ratio if rejected else 0.0, self.observations))
        mode.ratios.append(ratio)
        if rejected:
            self.rejected += 1
            level, since = mode.shifted()
            if level:
                # If the other mode still runs as predicted, the cause is not common: unlearn, but do not scale it, too.
                # Being accepted is not enough: a mode seldom seen is little known, and its gate is wide.
                at, off = other.last_accepted
                alone = at > since and abs(off) < 0.5 * abs(level)
                self._shift(1.0 if alone else float(np.exp(level)), common=not alone)
                return level, alone
            return 0.0, False
        mode.last_accepted = (self.observations, ratio)
        # Where noise is high, a shift hides inside the gate; it shows as a bias of many steps.
        if len(mode.ratios) == _BIAS_WINDOW and self.observations % _BIAS_EVERY == 0:
            bias = abs(float(np.median(mode.ratios)))
            if bias > max(_BIAS_LEAST, _BIAS_NOISE * self._noise):
                self._shift(1.0, common=True)
        return 0.0, False

    def _shift(self, scale: float, common: bool) -> None:
        self._filter.shift(scale, self._terms.shift_width(common))
        self.shifts += 1
        for mode in self._modes.values():
            mode.verdicts.clear()
            mode.ratios.clear()

    def step_times(
        self, requests: int, gamma: int, context_tokens: int, prefill_tokens: int = 0, drafted: int | None = None
    ) -> NDArray[np.float64]:
        """Return float64 [R*gamma + 1], non-decreasing, above 0; see :meth:`StepTimeModel.step_times`."""
        return self._correction.step_times(requests, gamma, context_tokens, prefill_tokens, drafted)

    def plain_time(self, requests: int, context_tokens: int, prefill_tokens: int = 0) -> float:
        """Return the seconds of a step that decodes R tokens without drafting; see :meth:`StepTimeModel.plain_time`."""
        return self._correction.plain_time(requests, context_tokens, prefill_tokens)

    def predict(self, requests: int, budget: int, drafted: int, context_tokens: int, prefill_tokens: int = 0) -> float:
        """Return the expected seconds of one step; arguments as :meth:`observe`."""
        return self._correction.predict(requests, budget, drafted, context_tokens, prefill_tokens)

    def draft_row_s(self, rows: int) -> float:
        """Return the seconds that one drafted row more or less costs around ``rows`` drafted rows, at least 0."""
        return self._correction.draft_row_s(rows)

    def snapshot(self) -> StepTimeModel:
        """Return what is believed now as a model of its own: for a profile, a plot or the simulator."""
        return self._correction.to_model()

    def state(self) -> dict[str, Any]:
        """Return what ``/dspark/state`` shows: counts, error, noise and the learnt terms, as JSON values."""
        return {
            "observations": self.observations,
            "rejected": self.rejected,
            "shifts": self.shifts,
            "error_median": self.error_median if self._errors else None,
            "noise": self._noise,
            **self._correction.summary(),
        }
