"""The frontier of throughput against the speed of a user, and what may honestly be read off it.

Both axes are better where they are larger. Nothing is extrapolated: outside what was measured there is no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Point:
    """One measured load of one arm.

    Attributes
    ----------
    x : float
        Tokens a second of a user.
    y : float
        Output tokens a second of the whole device.
    load : float
        Concurrency or requests a second; a label.
    """

    x: float
    y: float
    load: float


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats on one axis without losing on the other, by rising ``x``; ties stay."""
    kept = [p for p in points if not any(q.x >= p.x and q.y >= p.y and (q.x > p.x or q.y > p.y) for q in points)]
    return sorted(kept, key=lambda p: (p.x, -p.y, p.load))


def value_at(points: Sequence[Point], x: float) -> float | None:
    """Return the frontier's throughput at a speed: linear between neighbouring points of it, None outside them."""
    front = frontier(points)
    for point in front:
        if point.x == x:
            return point.y
    for left, right in pairwise(front):
        if left.x < x < right.x:
            return left.y + (right.y - left.y) * (x - left.x) / (right.x - left.x)
    return None


def speed_at(points: Sequence[Point], y: float) -> float | None:
    """Return the frontier's speed of a user at a throughput, in the same way."""
    return value_at([Point(point.y, point.x, point.load) for point in points], y)


@dataclass(frozen=True)
class Between:
    """How two frontiers lie to each other.

    Attributes
    ----------
    low, high : float
        Speeds of a user that both have.
    area : float
        Integral of the difference of throughputs over them.
    ratio : float
        Integral of the one over the integral of the baseline.
    """

    low: float
    high: float
    area: float
    ratio: float


def between(points: Sequence[Point], baseline: Sequence[Point]) -> Between | None:
    """Integrate both frontiers over the speeds that both have; None if they share none."""
    ours, theirs = frontier(points), frontier(baseline)
    if not ours or not theirs:
        return None
    low, high = max(ours[0].x, theirs[0].x), min(ours[-1].x, theirs[-1].x)
    if low >= high:
        return None
    above, below = (_integral(front, low, high) for front in (ours, theirs))
    return Between(low, high, above - below, above / below) if below else None


def _integral(front: Sequence[Point], low: float, high: float) -> float:
    marks = sorted({low, high, *(point.x for point in front if low < point.x < high)})
    total = 0.0
    for a, b in pairwise(marks):
        left, right = value_at(front, a), value_at(front, b)
        assert left is not None
        assert right is not None
        total += (b - a) * (left + right) / 2
    return total
