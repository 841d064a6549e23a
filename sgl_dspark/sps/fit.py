"""Start-up probes of the real model -> :class:`StepTimeModel`: medians, outlier rejection, isotonic curves."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgl_dspark.errors import ProfileError
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel

Kind = Literal["verify", "draft", "plain", "accept", "prefill"]
_SIZED_BY_REQUESTS = ("draft", "plain")
_IMPLAUSIBLE = 1.3


@dataclass(frozen=True)
class Probe:
    """One timed run of one part of a step, host share excluded.

    Attributes
    ----------
    kind : str
        ``verify`` (target forward over ``tokens``), ``draft`` (one draft pass over ``requests`` rows), ``plain`` (a
        step without drafting), ``accept`` (acceptance and commit) or ``prefill`` (``tokens`` prompt tokens).
    requests, tokens : int
        R and B; ``tokens`` is ignored by ``draft`` and ``plain``.
    context_tokens : int
        Sum over the batch.
    seconds : float
        Wall time, above 0. Repeats are separate probes.
    """

    kind: Kind
    requests: int
    tokens: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True)
class _Point:
    requests: int
    size: int
    context: int
    seconds: float
    repeats: int


def isotonic(values: ArrayLike, weights: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return the non-decreasing sequence nearest to ``values`` in weighted squares (pool adjacent violators).

    Parameters
    ----------
    values : float [N]
    weights : float [N], optional
        Above 0; 1 by default.
    """
    value = np.asarray(values, dtype=np.float64)
    weight = np.ones_like(value) if weights is None else np.asarray(weights, dtype=np.float64)
    means: list[float] = []
    masses: list[float] = []
    lengths: list[int] = []
    for level, mass in zip(value.tolist(), weight.tolist(), strict=True):
        means.append(level)
        masses.append(mass)
        lengths.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            level, mass, length = means.pop(), masses.pop(), lengths.pop()
            means[-1] = (means[-1] * masses[-1] + level * mass) / (masses[-1] + mass)
            masses[-1] += mass
            lengths[-1] += length
    return np.repeat(means, lengths)


def non_negative_fit(columns: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64 [P]: the least-squares coefficients, each at least 0.

    Parameters
    ----------
    columns : float64 [N, P], P small
        Every subset of columns is tried, which is exact and quick for the three terms used here.
    target : float64 [N]
    """
    width = columns.shape[1]
    best, best_error = np.zeros(width), float(target @ target)
    for count in range(1, width + 1):
        for chosen in itertools.combinations(range(width), count):
            picked = columns[:, chosen]
            found = np.linalg.lstsq(picked, target, rcond=None)[0]
            error = float(np.sum((picked @ found - target) ** 2))
            if bool(np.all(found >= 0)) and error < best_error * (1 - 1e-9):
                best, best_error = np.zeros(width), error
                best[list(chosen)] = found
    return best


def _points(probes: Sequence[Probe], kind: Kind) -> list[_Point]:
    """Return one point, the median of its repeats, for each shape that was probed, by increasing size."""
    runs: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for probe in probes:
        if probe.kind == kind:
            size = probe.requests if kind in _SIZED_BY_REQUESTS else probe.tokens
            runs[size, probe.requests, probe.context_tokens].append(probe.seconds)
    return [
        _Point(requests, size, context, float(np.median(seconds)), len(seconds))
        for (size, requests, context), seconds in sorted(runs.items())
    ]


def _shape_costs(points: Sequence[_Point]) -> list[float]:
    """Return seconds per context token, per context token and query token of its request, and per request.

    Only points of the same size are compared, so that the shape of the cost against size cannot pass for these; each
    size counts alike, by relative errors.
    """
    groups: dict[int, list[_Point]] = defaultdict(list)
    for point in points:
        groups[point.size].append(point)
    columns, target = [], []
    for group in groups.values():
        rows = np.array([[p.context, p.context * p.size / p.requests, p.requests] for p in group], dtype=np.float64)
        seconds = np.array([p.seconds for p in group])
        columns.append((rows - rows.mean(axis=0)) / seconds.mean())
        target.append((seconds - seconds.mean()) / seconds.mean())
    table = np.concatenate(columns)
    scale = np.abs(table).max(axis=0)
    known = scale > 0
    found = np.zeros(3)
    if known.any():
        found[known] = non_negative_fit(table[:, known] / scale[known], np.concatenate(target)) / scale[known]
    return found.tolist()


def _plausible(seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return bool [N]: False where two of the next three larger sizes took far less, which costs never do."""
    keep = np.ones(seconds.shape[0], dtype=np.bool_)
    for i in range(seconds.shape[0] - 2):
        following = np.sort(seconds[i + 1 : i + 4])
        keep[i] = seconds[i] <= _IMPLAUSIBLE * following[1]
    return keep


def _curve(points: Sequence[_Point], shape_s: Sequence[float]) -> Curve:
    """Return the isotonic curve through points from which their costs per context token and request are taken.

    Of each size only the shortest contexts count: there is least to take away, and what is wrong about the cost of
    context (which rises faster than in proportion where it leaves a cache) spoils the curve least.
    """
    bare: dict[int, list[tuple[float, int]]] = defaultdict(list)
    shortest: dict[int, float] = {}
    for p in points:
        shortest[p.size] = min(shortest.get(p.size, np.inf), p.context / p.requests)
    for p in points:
        if p.context / p.requests > shortest[p.size]:
            continue
        shape = p.context * (shape_s[0] + shape_s[1] * p.size / p.requests) + p.requests * shape_s[2]
        bare[p.size].append((max(p.seconds - shape, 0.05 * p.seconds), p.repeats))
    sizes = np.array(sorted(bare), dtype=np.int64)
    seconds = np.array([np.median([s for s, _ in bare[int(size)]]) for size in sizes])
    weights = np.array([sum(repeats for _, repeats in bare[int(size)]) for size in sizes], dtype=np.float64)
    keep = _plausible(seconds)
    return Curve(sizes[keep], isotonic(seconds[keep], weights[keep]))


def _accept_costs(points: Sequence[_Point]) -> NDArray[np.float64]:
    """Return float64 [3]: constant, per request and per token."""
    if not points:
        return np.zeros(3)
    rows = np.array([[1.0, p.requests, p.size] for p in points])
    scale = rows.max(axis=0)
    return np.asarray(non_negative_fit(rows / scale, np.array([p.seconds for p in points])) / scale)


def _prefill_cost(points: Sequence[_Point], verify: Curve) -> float:
    """Return the seconds per prefilled token; unprobed, what a verify token costs beyond the last knot."""
    if points:
        return float(np.median([p.seconds / p.size for p in points]))
    return verify.slope(int(verify.sizes[-1]))


def fit(probes: Iterable[Probe], tiers: ArrayLike | None = None) -> StepTimeModel:
    """Turn start-up probes into a step-time model.

    Parameters
    ----------
    probes : iterable of Probe
        At least one ``verify`` probe; other kinds are optional and cost nothing if absent, except a prefilled token,
        which then costs what a verify token costs beyond the last probe. Context costs need two contexts at one size,
        and the cost per request two numbers of requests.
    tiers : int [T], optional
        Verify-token sizes at which graphs exist, increasing.

    Raises
    ------
    ProfileError
        If there is no ``verify`` probe, or a probe is not a positive, finite time of a positive shape.
    """
    found = list(probes)
    for probe in found:
        least = 0 if probe.kind in _SIZED_BY_REQUESTS else 1
        shaped = probe.requests >= 1 and probe.tokens >= least and probe.context_tokens >= 0
        if not shaped or not 0 < probe.seconds < np.inf:
            raise ProfileError(f"{probe} is no measurement; probe again on a machine that is not being suspended")
    verify_points = _points(found, "verify")
    if not verify_points:
        raise ProfileError("no verification was probed; probe the target at several numbers of tokens")
    read_s, computed_s, request_s = _shape_costs(verify_points)
    verify = _curve(verify_points, (read_s, computed_s, request_s))
    draft_points, plain_points = _points(found, "draft"), _points(found, "plain")
    # A drafted row reads its own context once, whatever the number of rows.
    draft_context = sum(_shape_costs(draft_points)[:2]) if draft_points else 0.0
    accept = _accept_costs(_points(found, "accept")).tolist()
    return StepTimeModel(
        verify=verify if tiers is None else verify.staircase(tiers),
        draft=_curve(draft_points, (draft_context, 0.0, 0.0)) if draft_points else Curve([1], [0.0]),
        plain=_curve(plain_points, (read_s, computed_s, 0.0)) if plain_points else None,
        verify_request_s=request_s,
        accept_s=accept[0],
        accept_request_s=accept[1],
        accept_token_s=accept[2],
        context_token_s=read_s,
        context_query_s=computed_s,
        draft_context_s=draft_context,
        prefill_token_s=_prefill_cost(_points(found, "prefill"), verify),
    )
