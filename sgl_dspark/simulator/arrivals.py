"""Who asks when: synthetic arrival processes and the lengths of their requests.

Traces of production services are read by :mod:`sgl_dspark.simulator.traces`. Letters: N requests, in arrival order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_CV = 10.0


@dataclass(frozen=True)
class Workload:
    """N requests in arrival order.

    Attributes
    ----------
    arrival_s : float64 [N]
        Seconds since the start, >= 0, non-decreasing. All zero in a closed loop, whose clients wait for one another.
    prompt_tok, output_tok : int64 [N]
        At least 1. ``output_tok`` counts every emitted token, the one of the prefill included.
    concurrency : int or None
        Clients of a closed loop, each of which asks again when its answer is complete; None for an open one.

    Raises
    ------
    ConfigError
        Naming the field: lengths differ, arrivals run backwards, a length below 1, concurrency below 1.
    """

    arrival_s: Floats
    prompt_tok: Ints
    output_tok: Ints
    concurrency: int | None = None

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        if count == 0:
            raise ConfigError("arrival_s: a workload needs at least one request")
        for name in ("prompt_tok", "output_tok"):
            values = getattr(self, name)
            if values.shape != (count,):
                raise ConfigError(f"{name}: shape {values.shape}, expected ({count},), one length per request")
            if values.min() < 1:
                raise ConfigError(f"{name}: {values.min()} is below 1; drop requests without tokens")
        if not np.isfinite(self.arrival_s).all() or self.arrival_s[0] < 0 or (np.diff(self.arrival_s) < 0).any():
            raise ConfigError("arrival_s: must be finite, non-negative and in order; sort the requests by time")
        if self.concurrency is not None:
            at_least("concurrency", self.concurrency, 1)

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True)
class Lengths:
    """Prompt and output lengths of synthetic requests: log-normal around a median, clipped.

    Attributes
    ----------
    prompt_tok, output_tok : int
        Medians, at least 1.
    prompt_spread, output_spread : float
        Standard deviation of the natural logarithm; 0 makes every request alike.
    max_prompt_tok, max_output_tok : int
        Largest lengths; longer draws are cut to them.
    """

    prompt_tok: int = 512
    output_tok: int = 256
    prompt_spread: float = 0.6
    output_spread: float = 0.5
    max_prompt_tok: int = 16384
    max_output_tok: int = 2048

    def __post_init__(self) -> None:
        for name in ("prompt_tok", "output_tok", "max_prompt_tok", "max_output_tok"):
            at_least(name, getattr(self, name), 1)
        for name in ("prompt_spread", "output_spread"):
            at_least(name, getattr(self, name), 0)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Return int64 [count] prompt and output lengths, at least 1."""
        prompts = self.prompt_tok * np.exp(self.prompt_spread * rng.standard_normal(count))
        outputs = self.output_tok * np.exp(self.output_spread * rng.standard_normal(count))
        return _cut(prompts, self.max_prompt_tok), _cut(outputs, self.max_output_tok)


def poisson(count: int, rate_rps: float, lengths: Lengths, rng: np.random.Generator) -> Workload:
    """Draw independent exponential gaps; ``rate_rps`` requests a second on average."""
    return bursty(count, rate_rps, 1.0, lengths, rng)


def bursty(count: int, rate_rps: float, cv: float, lengths: Lengths, rng: np.random.Generator) -> Workload:
    """Draw Gamma gaps with a coefficient of variation ``cv``.

    Parameters
    ----------
    count : int
        N.
    rate_rps : float
        Requests a second on average, above 0.
    cv : float
        Standard deviation of the gaps over their mean, in (0, 10]; 1 is Poisson, more comes in bursts.
    lengths : Lengths
        Prompt and output lengths.
    rng : numpy.random.Generator
        Source of the draws; lengths come first, so that two rates share them under one seed.

    Raises
    ------
    ConfigError
        If a number is out of range, naming it.
    """
    at_least("count", count, 1)
    if not 0 < rate_rps < np.inf:
        raise ConfigError(f"rate_rps: {rate_rps} is not a positive number of requests a second")
    if not 0 < cv <= MAX_CV:
        raise ConfigError(f"cv: {cv} is outside (0, {MAX_CV:g}]")
    prompts, outputs = lengths.draw(count, rng)
    shape = 1.0 / cv**2
    gaps = rng.gamma(shape, 1.0 / (shape * rate_rps), count)
    return Workload(np.cumsum(gaps), prompts, outputs)


def closed_loop(count: int, concurrency: int, lengths: Lengths, rng: np.random.Generator) -> Workload:
    """Let ``concurrency`` clients ask ``count`` requests in all, each as soon as its last answer is complete."""
    at_least("count", count, 1)
    return Workload(np.zeros(count), *lengths.draw(count, rng), concurrency=concurrency)


def draining(count: int, lengths: Lengths, rng: np.random.Generator) -> Workload:
    """Send ``count`` requests at once, then nothing: the batch empties until one is left."""
    at_least("count", count, 1)
    return Workload(np.zeros(count), *lengths.draw(count, rng))


def at_least(field: str, value: float, least: float) -> None:
    """Raise ``ConfigError`` naming ``field`` unless ``value >= least``; NaN is refused too."""
    if not value >= least:
        raise ConfigError(f"{field}: {value} is below {least}")


def _cut(lengths: Floats, most: int) -> Ints:
    return np.clip(np.rint(lengths), 1, most).astype(np.int64)
