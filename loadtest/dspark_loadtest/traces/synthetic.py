"""Traces that are made up: phases of a given rate, evenly or in bursts, with lengths around a median."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.traces.request import Trace, TraceRequest
from sgl_dspark.simulator.arrivals import MAX_CV, Lengths

Floats = NDArray[np.float64]

MAX_REQUESTS = 10_000_000
_DIURNAL_STEPS = 96
# Ids of shared prefixes, far above those of what follows them.
_PREFIX_IDS = 1 << 40


@dataclass(frozen=True)
class Phase:
    """A stretch of time with one rate.

    Attributes
    ----------
    duration_s : float
        Above 0.
    rate_rps : float
        Requests a second on average; 0 is silence.
    category : str or None
        Kind of text of its requests; None leaves it to the replay.
    prompt_scale : float
        Multiplies prompt lengths: a wave of long contexts.
    """

    duration_s: float
    rate_rps: float
    category: str | None = None
    prompt_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, low in (("duration_s", 1e-9), ("rate_rps", 0.0), ("prompt_scale", 1e-9)):
            value = getattr(self, name)
            if not low <= value < math.inf:
                raise LoadtestError(f"{name}: {value} is not a number of at least {low:g}")


def diurnal(duration_s: float, mean_rps: float, swing: float = 0.8) -> list[Phase]:
    """One day in ``duration_s``: a sine around the mean that begins at its lowest.

    Parameters
    ----------
    duration_s, mean_rps : float
        Above 0.
    swing : float
        In [0, 1]; the peak is ``(1 + swing)`` times the mean, the night ``(1 - swing)`` times.
    """
    if not 0 <= swing <= 1:
        raise LoadtestError(f"swing: {swing} is outside [0, 1]")
    middles = (np.arange(_DIURNAL_STEPS) + 0.5) / _DIURNAL_STEPS
    rates = mean_rps * (1 - swing * np.cos(2 * np.pi * middles))
    return [Phase(duration_s / _DIURNAL_STEPS, float(rate)) for rate in rates]


def step_burst(duration_s: float, rate_rps: float, factor: float = 10.0, burst_s: float = 1.0) -> list[Phase]:
    """``factor`` times the rate during ``burst_s`` in the middle of an otherwise even load."""
    if not 0 < burst_s < duration_s:
        raise LoadtestError(f"burst_s: {burst_s} is not between 0 and the duration, {duration_s}")
    side = (duration_s - burst_s) / 2
    return [Phase(side, rate_rps), Phase(burst_s, factor * rate_rps), Phase(side, rate_rps)]


@dataclass(frozen=True)
class Prefixes:
    """System prompts that requests share: ``count`` of them, ``blocks`` hash blocks each; a share of 1 is everybody."""

    count: int = 1
    blocks: int = 0
    share: float = 1.0


def generate(
    phases: Sequence[Phase],
    lengths: Lengths,
    *,
    cv: float = 1.0,
    seed: int = 0,
    block_size: int = 64,
    prefixes: Prefixes | None = None,
) -> Trace:
    """Make a trace of the phases one after the other.

    Gaps are Gamma-distributed with coefficient of variation ``cv`` on a clock that runs with the rate: 1 is Poisson,
    more comes in bursts, and the number of requests of a phase is its rate times its duration on average.

    Raises
    ------
    LoadtestError
        If a number is out of range, no phase has a rate, or nothing falls into the phases.
    """
    if not 0 < cv <= MAX_CV:
        raise LoadtestError(f"cv: {cv} is outside (0, {MAX_CV:g}]")
    expected = sum(phase.duration_s * phase.rate_rps for phase in phases)
    if not 0 < expected <= MAX_REQUESTS:
        raise LoadtestError(f"rate_rps: the phases ask for {expected:g} requests; give between 1 and {MAX_REQUESTS}")
    rng = np.random.default_rng(seed)
    seconds, where = _arrivals(phases, cv, expected, rng)
    if not len(seconds):
        raise LoadtestError(f"rate_rps: no request falls into phases that ask for {expected:g}; raise the rate")
    prompts, outputs = lengths.draw(len(seconds), rng)
    scales = np.array([phase.prompt_scale for phase in phases])[where]
    scaled = np.clip(np.rint(prompts * scales), 1, None).astype(np.int64)
    shared = prefixes or Prefixes()
    chosen = np.where(rng.random(len(seconds)) < shared.share, rng.integers(0, max(shared.count, 1), len(seconds)), -1)
    requests = []
    following = 0
    for i, at in enumerate(seconds):
        own = math.ceil(scaled[i] / block_size)
        beginning = _prefix(shared, int(chosen[i]))
        requests.append(
            TraceRequest(
                timestamp=round(1e3 * float(at), 4),
                input_length=int(scaled[i]) + len(beginning) * block_size,
                output_length=int(outputs[i]),
                hash_ids=(*beginning, *range(following, following + own)),
                category=phases[where[i]].category,
            )
        )
        following += own
    source = {
        "format": "synthetic",
        "phases": [asdict(phase) for phase in phases] if len(phases) <= 12 else f"{len(phases)} phases",
        "lengths": asdict(lengths),
        "cv": cv,
        "seed": seed,
    }
    return Trace(tuple(requests), source, block_size)


def _prefix(shared: Prefixes, chosen: int) -> range:
    """Return the hash ids of the beginning that a request shares; none if ``chosen`` is negative."""
    start = _PREFIX_IDS + chosen * shared.blocks
    return range(start, start + shared.blocks) if chosen >= 0 else range(0)


def _arrivals(
    phases: Sequence[Phase], cv: float, expected: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Return seconds and phase of each arrival: unit-rate gaps, read off on the cumulated rate."""
    ends = np.cumsum([phase.duration_s for phase in phases])
    counts = np.cumsum([phase.duration_s * phase.rate_rps for phase in phases])
    shape = 1.0 / cv**2
    drawn = int(expected + 10 * (1 + cv) * math.sqrt(expected) + 10)
    marks = np.cumsum(rng.gamma(shape, 1.0 / shape, drawn))
    marks = marks[marks < counts[-1]]
    where = np.searchsorted(counts, marks, side="right")
    before_count = np.concatenate([[0.0], counts])[where]
    before_s = np.concatenate([[0.0], ends])[where]
    rates = np.array([phase.rate_rps for phase in phases])[where]
    return before_s + (marks - before_count) / rates, where
