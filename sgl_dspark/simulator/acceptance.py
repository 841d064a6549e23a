"""What a draft's confidence says, and which drafts the target accepts.

Letters: R running requests, G = gamma slots, N requests of the workload. Every draw belongs to one *text position* of
one request: the outcome of position p is the same whichever policy verifies it, so that arms share random numbers and
differ by their decisions alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.errors import ConfigError
from sgl_dspark.simulator.arrivals import Floats, Ints, at_least

F32 = NDArray[np.float32]
Bools = NDArray[np.bool_]

# Paper, Fig. 2, Qwen3-4B with DSpark: acceptance of slot 1..7 given that the ones before were accepted.
CONDITIONAL_ACCEPTANCE = {
    "maths": (0.905, 0.890, 0.888, 0.885, 0.887, 0.891, 0.882),
    "code": (0.886, 0.872, 0.860, 0.861, 0.858, 0.859, 0.851),
    "chat": (0.735, 0.738, 0.740, 0.744, 0.758, 0.766, 0.761),
}
DOMAINS = tuple(CONDITIONAL_ACCEPTANCE)


@dataclass(frozen=True)
class Drafts:
    """One drafted block per running request; every array is [R, G].

    Attributes
    ----------
    logits : float32
        What the confidence head says, before calibration. Slot j is known before token j is drawn.
    accepted : bool
        Whether the target accepts slot j once the slots before it were accepted.
    """

    logits: F32
    accepted: Bools


class Acceptance(Protocol):
    """Source of drafts; one object serves one run of one workload."""

    gamma: int

    def draft(self, requests: Ints, positions: Ints) -> Drafts:
        """Draft a block for each of the requests (int64 [R]) after ``positions`` (int64 [R]) emitted tokens."""
        ...


@dataclass(frozen=True)
class SyntheticConfig:
    """Difficulty of the text, and how well the head knows it.

    Attributes
    ----------
    mix : (float, float, float)
        Shares of maths, code and chat; they are normalised.
    request_sigma, token_sigma : float
        Standard deviation in log-odds of a whole request and of its positions around it. With the defaults slot 0 of
        chat has the AUROC of the paper's Fig. 6, about 0.82.
    drift : float
        Correlation of neighbouring positions of a request, in [0, 1): difficulty is AR(1) along the text.
    temperature : float
        Logits are multiplied by it: 1 is calibrated, 2 is overconfident, 0.5 timid.
    constant : float or None
        Acceptance of every slot of every request instead of all of the above, in (0, 1).
    """

    mix: tuple[float, float, float] = (1.0, 1.0, 1.0)
    request_sigma: float = 0.7
    token_sigma: float = 1.3
    drift: float = 0.5
    temperature: float = 1.0
    constant: float | None = None

    def __post_init__(self) -> None:
        if len(self.mix) != len(DOMAINS) or min(self.mix) < 0 or not 0 < sum(self.mix) < np.inf:
            raise ConfigError(f"mix: {self.mix} is not three shares (maths, code, chat), one of them positive")
        at_least("request_sigma", self.request_sigma, 0)
        at_least("token_sigma", self.token_sigma, 0)
        if not 0 <= self.drift < 1:
            raise ConfigError(f"drift: {self.drift} is outside [0, 1)")
        if not 0 < self.temperature < np.inf:
            raise ConfigError(f"temperature: {self.temperature} is not a positive number")
        if self.constant is not None and not 0 < self.constant < 1:
            raise ConfigError(f"constant: {self.constant} is outside (0, 1)")


class Synthetic:
    """Drafts whose acceptance follows the paper's Fig. 2 per domain and slot, with a head that sees the difficulty.

    Parameters
    ----------
    config : SyntheticConfig
        Difficulty and calibration.
    gamma : int
        G, at most 7: the paper measured no further.
    output_tok : int64 [N]
        Emitted tokens per request; a position is drawn for each and for the block that overhangs.
    seed : int
        Of every draw.
    """

    def __init__(self, config: SyntheticConfig, gamma: int, output_tok: Ints, seed: int) -> None:
        slots = len(CONDITIONAL_ACCEPTANCE["maths"])
        if not 1 <= gamma <= slots:
            raise ConfigError(f"gamma: {gamma} is outside [1, {slots}], the slots that the paper measured")
        self.gamma = gamma
        rng = np.random.default_rng([seed, 0xACCE])
        shares = np.asarray(config.mix) / sum(config.mix)
        count = len(output_tok)
        self.domain = rng.choice(len(DOMAINS), size=count, p=shares)
        self._first = np.concatenate(([0], np.cumsum(output_tok + gamma + 1)))
        self._temperature = config.temperature
        total = int(self._first[-1])
        self._uniform = rng.random(total)
        if config.constant is not None:
            self._difficulty = np.zeros(total)
            self._base = np.full((len(DOMAINS), gamma), np.log(config.constant / (1 - config.constant)))
        else:
            noise = _autoregressive(rng.standard_normal(total), config.drift)
            # The AR(1) runs on from one request to the next; the request's own level makes up for that.
            level = config.request_sigma * rng.standard_normal(count)
            self._difficulty = config.token_sigma * noise + np.repeat(level, output_tok + gamma + 1)
            self._base = np.stack([fit_base(CONDITIONAL_ACCEPTANCE[name], config)[:gamma] for name in DOMAINS])
        self._slots = np.arange(gamma)

    def draft(self, requests: Ints, positions: Ints) -> Drafts:
        """Draft a block for each request; see :class:`Acceptance`."""
        at = (self._first[requests] + positions)[:, None] + self._slots
        log_odds = self._base[self.domain[requests]] + self._difficulty[at]
        accepted = self._uniform[at] < 1.0 / (1.0 + np.exp(-log_odds))
        return Drafts((log_odds * self._temperature).astype(np.float32), accepted)


class Recorded:
    """Drafts taken from recorded rounds (the arrays of ``sgl_dspark.calibration.records.RecordSet``).

    A record is drawn for every text position, independently: the records do not say which request they came from, so
    difficulty does not last within a request here. A slot that was verified has its recorded outcome; one that was not
    is drawn from the confidence itself.

    Parameters
    ----------
    logits : float32 [M, G]
    verified, accepted : int [M]
        Drafts verified and drafts correct, 0 <= accepted <= verified <= G.
    output_tok : int64 [N]
        Emitted tokens per request.
    seed : int
        Of every draw.
    """

    def __init__(self, logits: F32, verified: Ints, accepted: Ints, output_tok: Ints, seed: int) -> None:
        rows, self.gamma = logits.shape
        at_least("records", rows, 1)
        if verified.shape != (rows,) or accepted.shape != (rows,):
            raise ConfigError(
                f"records: {rows} rows of logits but {verified.shape} verified, {accepted.shape} accepted"
            )
        rng = np.random.default_rng([seed, 0xACCE])
        self._first = np.concatenate(([0], np.cumsum(output_tok + self.gamma + 1)))
        total = int(self._first[-1])
        self._row = rng.integers(0, rows, total)
        self._uniform = rng.random(total)
        slots = np.arange(self.gamma)
        self._logits = logits.astype(np.float32)
        self._probability = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
        self._probability[slots < np.minimum(accepted, verified)[:, None]] = 1.0
        self._probability[(slots == accepted[:, None]) & (slots < verified[:, None])] = 0.0
        self._slots = slots

    def draft(self, requests: Ints, positions: Ints) -> Drafts:
        """Draft a block for each request; see :class:`Acceptance`."""
        start = self._first[requests] + positions
        rows = self._row[start]
        return Drafts(self._logits[rows], self._uniform[start[:, None] + self._slots] < self._probability[rows])


@lru_cache
def fit_base(conditional: tuple[float, ...], config: SyntheticConfig) -> Floats:
    """Solve for the log-odds per slot that reproduce conditional acceptances under the difficulty's spread.

    Blocks that survive a slot are easier than the average, so later slots need lower log-odds than their conditional
    acceptance alone would say.

    Parameters
    ----------
    conditional : tuple of float
        Acceptance of each slot given the slots before it, in (0, 1).
    config : SyntheticConfig
        Its sigmas and drift.

    Returns
    -------
    float64 [G]
        Shared between calls; do not write to it.
    """
    rng = np.random.default_rng(20)
    samples = 20000
    level = config.request_sigma * rng.standard_normal(samples)
    noise = rng.standard_normal(samples)
    weight = np.ones(samples)
    base = np.empty(len(conditional))
    for slot, wanted in enumerate(conditional):
        spread = level + config.token_sigma * noise
        low, high = -20.0, 20.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            accepted = 1.0 / (1.0 + np.exp(-(middle + spread)))
            low, high = (middle, high) if np.average(accepted, weights=weight) < wanted else (low, middle)
        base[slot] = low
        weight = weight / (1.0 + np.exp(-(low + spread)))
        noise = config.drift * noise + np.sqrt(1 - config.drift**2) * rng.standard_normal(samples)
    return base


def num_correct(accepted: Bools, lens: Ints) -> Ints:
    """Count the leading accepted drafts among the first ``lens`` of each row; int64 [R], bonus excluded."""
    leading = np.logical_and.accumulate(accepted, axis=1).sum(axis=1)
    correct: Ints = np.minimum(leading, lens).astype(np.int64)
    return correct


def _autoregressive(noise: Floats, drift: float) -> Floats:
    if drift == 0:
        return noise
    # AR(1) as a short moving average: the weights fall below 1e-6 within `taps` positions.
    taps = max(1, int(np.ceil(np.log(1e-6) / np.log(drift))))
    weights = np.sqrt(1 - drift**2) * drift ** np.arange(taps)
    smooth: Floats = np.convolve(noise, weights)[: len(noise)]
    return smooth
