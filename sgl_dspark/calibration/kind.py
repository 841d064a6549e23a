"""One kind's recent rounds, its calibration map and whether that map still holds.

Shape letters: W rounds kept, G = gamma slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.calibration.affine import Line, fit_slot
from sgl_dspark.calibration.drift import DriftTest, LiveEce, slot_sums
from sgl_dspark.calibration.maps import CalibrationMap, Floats, sigmoid
from sgl_dspark.errors import ConfigError


@dataclass(frozen=True)
class OnlineConfig:
    """How calibration follows traffic. Rounds are those of one kind (greedy or sampled).

    Attributes
    ----------
    window : int
        Rounds that are kept; bounds the cost of a refit.
    half_life : float
        Rounds after which an outcome counts half.
    most_per_step : int
        Rounds of one decode step that are taken, evenly chosen; bounds the cost of a step.
    block : int
        Rounds between looks at ECE and drift.
    min_evidence : int
        Verified rounds of a slot before its temperature moves, and rounds before the state leaves ``learning``.
    drift_ece, settled_ece : float
        Mean ECE beyond chance above which the state becomes ``drift``, and below which it ends. In [0, 1].
    drift_restart : int
        Latest rounds that are kept when a drift is found; older ones are of the traffic before it.
    """

    window: int = 2048
    half_life: float = 1024.0
    most_per_step: int = 128
    block: int = 64
    min_evidence: int = 64
    drift_ece: float = 0.06
    settled_ece: float = 0.03
    drift_restart: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.block <= self.window or not 0 <= self.drift_restart <= self.window:
            raise ConfigError("calibration: block must be 1..window and drift_restart 0..window")
        if not 1 <= self.most_per_step <= self.window:
            raise ConfigError("calibration: most_per_step must be 1..window")
        if self.half_life <= 0 or self.min_evidence < 1:
            raise ConfigError("calibration: half_life must be positive and min_evidence at least 1")
        if not 0 <= self.settled_ece <= self.drift_ece <= 1:
            raise ConfigError("calibration: settled_ece must be at most drift_ece, both in [0, 1]")


_FIT_ITERATIONS = 3
# Decode steps between refits of a full window, which bounds their cost at large batches.
_REFIT_STEPS_APART = 8
_WEAK_TRUST, _SHARED_TRUST, _STORED_TRUST = 1.0, 8.0, 15.0
# Rounds from which ECE itself tells a drift; with fewer, chance reaches the bound, and the test of change has to agree.
_JUDGED = 512
# Before any outcome: a modest guess that counts as much as so many rounds.
_GUESS, _GUESS_ROUNDS = 0.6, 16.0


class KindState:
    """Ring of recent rounds of one kind, the map fitted to them, live ECE and drift.

    Attributes
    ----------
    inverse, biases : float64 [G]
        The map in force.
    empirical : float64 [G]
        Running mean of survival: outcomes where verified, the map's prediction where not.
    rounds, refits, restarts, drifts : int
        Since the start; restarts forget the rounds before a change of traffic, drifts are those that were large.
    """

    def __init__(self, gamma: int, start: CalibrationMap | None, config: OnlineConfig) -> None:
        if start is not None and start.gamma != gamma:
            raise ConfigError(f"calibration has {start.gamma} slots, the draft {gamma}; calibrate again")
        self.gamma, self.config = gamma, config
        self._start = start or CalibrationMap.identity(gamma)
        # A stored fit rests on more rounds than the window holds; it is trusted until traffic is seen to differ.
        self._trust = _WEAK_TRUST if self._start.is_identity else _STORED_TRUST
        self.inverse, self.biases = self._start.inverse_temperatures.copy(), self._start.biases.copy()
        self.empirical = _GUESS ** np.arange(1.0, gamma + 1)
        self.rounds = self.refits = self.restarts = self.drifts = 0
        self.kept = 0
        self.drifting = False
        self._empirical_weight = _GUESS_ROUNDS
        # Twice the window: rows are appended, and the newer half is moved to the front when the end is reached.
        self._logits = np.zeros((2 * config.window, gamma), dtype=np.float32)
        self._verified = np.zeros(2 * config.window, dtype=np.int64)
        self._accepted = np.zeros(2 * config.window, dtype=np.int64)
        self._end = 0
        self._waiting = 0
        self._since_refit = self._steps = 0
        self._patience = 0
        self._test = DriftTest(gamma)
        self._live = LiveEce(gamma)
        # Oldest first, the newest counts 1.
        self._weights: Floats = 0.5 ** (np.arange(config.window)[::-1] / config.half_life)

    def add(self, logits: NDArray[np.float32], verified: NDArray[Any], accepted: NDArray[Any]) -> bool:
        """Keep rounds, [R, G], [R], [R]; returns whether the map or the statistics were updated."""
        window, count, most = self.config.window, len(logits), self.config.most_per_step
        self._steps += 1
        if count > most:
            # Another choice at every step, so that no request is always left out.
            rows = (np.arange(most) * count // most + self._steps) % count
            logits, verified, accepted, count = logits[rows], verified[rows], accepted[rows], most
        if self._end + count > 2 * window:
            self._make_room()
        place = slice(self._end, self._end + count)
        self._logits[place], self._verified[place], self._accepted[place] = logits, verified, accepted
        self._end += count
        self.rounds += count
        self.kept = min(self.kept + count, window)
        self._waiting = min(self._waiting + count, window)
        if self._waiting < self.config.block:
            return False
        self.absorb()
        # The less there is to go by, the more a few rounds change; a full window changes slowly.
        due = self._since_refit >= max(self.config.block, self.kept // 4 if self.kept < window else window * 3 // 4)
        if due and (self.kept < window or self._steps >= _REFIT_STEPS_APART):
            self.refit()
        return True

    def absorb(self) -> None:
        """Compare the waiting rounds with what the map said of them: ECE, drift and running mean."""
        count, self._waiting = self._waiting, 0
        if not count:
            return
        self._since_refit += count
        rows = slice(self._end - count, self._end)
        z, verified, accepted = self._logits[rows].astype(np.float64), self._verified[rows], self._accepted[rows]
        confidence = sigmoid(z * self.inverse + self.biases)
        survival: Floats = np.cumprod(confidence, axis=1, dtype=np.float64)
        self._learn_mean(confidence, verified, accepted)
        sums = slot_sums(survival, verified, accepted)
        self._live.add(sums, 0.5 ** (count / self.config.half_life))
        self._test.add(z, confidence, verified, accepted, sums)
        if self.kept >= self._patience and self._test.changed(self.config.settled_ece):
            self._restart()
        self._judge()

    def refit(self) -> None:
        """Fit the map to the rounds that are kept, slot by slot, on prefix survival; recompute live ECE with it."""
        self._since_refit = self._steps = 0
        if not self.kept:
            return
        rows = slice(self._end - self.kept, self._end)
        z, verified, accepted = self._logits[rows].astype(np.float64), self._verified[rows], self._accepted[rows]
        weights = self._weights[-self.kept :]
        survival = np.empty_like(z)
        prefix = np.ones(self.kept)
        moved: list[Line] = []
        for slot in range(self.gamma):
            seen = verified > slot
            if np.count_nonzero(seen) >= self.config.min_evidence:
                label = (accepted[seen] > slot).astype(np.float64)
                now = (float(self.inverse[slot]), float(self.biases[slot]))
                start = (float(self._start.inverse_temperatures[slot]), float(self._start.biases[slot]))
                prior, trust = self._prior(start, moved)
                rows_seen = (z[seen, slot], prefix[seen], label, weights[seen])
                slope, bias = fit_slot(*rows_seen, now, prior, trust, _FIT_ITERATIONS)
                self.inverse[slot], self.biases[slot] = slope, bias
                moved.append((slope - start[0], bias - start[1]))
            prefix = prefix * sigmoid(z[:, slot] * self.inverse[slot] + self.biases[slot])
            survival[:, slot] = prefix
        self.refits += 1
        self._live.reset()
        self._live.add(slot_sums(survival, verified, accepted, weights), 1.0)
        self._judge()

    def _prior(self, start: Line, moved: list[Line]) -> tuple[Line, float]:
        """Centre and strength of a slot's prior: the start, and after a drift what the slots before it have moved by.

        Another domain shifts all slots alike, and the first ones have the most evidence; a few hundred rounds are
        enough this way, where each slot on its own would need a thousand.
        """
        if self._trust > _WEAK_TRUST or not moved:
            return start, self._trust
        slope, bias = np.mean(moved, axis=0)
        return (max(start[0] + float(slope), 0.1), start[1] + float(bias)), _SHARED_TRUST

    @property
    def state(self) -> str:
        """``learning``, ``ok`` or ``drift``."""
        if self.drifting:
            return "drift"
        return "learning" if self.rounds < self.config.min_evidence else "ok"

    @property
    def mean_ece(self) -> float:
        """Mean over observed slots of recent ECE, less what chance adds; NaN before any block."""
        return self._live.mean_excess()

    def snapshot(self) -> dict[str, Any]:
        """Return plain values for display; None for what is unknown."""
        return {
            "state": self.state,
            "rounds": self.rounds,
            "kept": self.kept,
            "refits": self.refits,
            "restarts": self.restarts,
            "drifts": self.drifts,
            "temperatures": [round(1 / float(v), 4) for v in self.inverse],
            "biases": [round(float(v), 4) for v in self.biases],
            "empirical": [round(float(v), 4) for v in self.empirical],
            "mean_ece": _shown(self.mean_ece),
            "ece": [_shown(v) for v in self._live.ece()],
            "ece_by_chance": [_shown(v) for v in self._live.floor()],
            "bias": [_shown(v) for v in self._live.bias()],
            "observed": [int(v) for v in self._live.weight()],
        }

    def _learn_mean(self, confidence: Floats, verified: NDArray[np.int64], accepted: NDArray[np.int64]) -> None:
        # Unverified slots of accepted rounds take their prediction: leaving them out would favour confident rounds.
        slots = np.arange(self.gamma)
        outcome = np.where(slots < verified[:, None], slots < accepted[:, None], confidence)
        lived = np.cumprod(outcome, axis=1)
        decay = 0.5 ** (len(lived) / self.config.half_life)
        weight = self._empirical_weight * decay + len(lived)
        self.empirical += (lived.sum(axis=0) - len(lived) * self.empirical) / weight
        self._empirical_weight = weight

    def _restart(self) -> None:
        """Forget the rounds before the change and follow the new ones closely; a large change is a drift."""
        self.restarts += 1
        if self._test.mean_excess() > self.config.drift_ece:
            self._enter_drift()
        self.kept = min(self.kept, self.config.drift_restart)
        self._empirical_weight = min(self._empirical_weight, float(self.config.drift_restart))
        self._trust = _WEAK_TRUST
        self._test.reset()
        # Without patience, slots that are seldom verified would never gather the evidence to follow.
        self._patience = min(4 * max(self.kept, self.config.block), self.config.window)
        self._since_refit = self.config.window

    def _judge(self) -> None:
        value, config, judged = self.mean_ece, self.config, self.kept >= _JUDGED
        if judged and value > config.drift_ece:
            self._enter_drift()
            return
        # As many rounds after a restart as were kept by it have to confirm the new map. A map that has all the evidence
        # there is and still errs a little is as good as it will get, and better than none.
        bound = (config.settled_ece + config.drift_ece) / 2 if judged else config.settled_ece
        if self.kept >= max(config.min_evidence, 2 * config.drift_restart) and value < bound:
            self.drifting = False

    def _enter_drift(self) -> None:
        self.drifts += not self.drifting
        self.drifting = True

    def _make_room(self) -> None:
        for array in (self._logits, self._verified, self._accepted):
            array[: self.kept] = array[self._end - self.kept : self._end].copy()
        self._end = self.kept


def _shown(value: float) -> float | None:
    return None if value != value else round(float(value), 5)
