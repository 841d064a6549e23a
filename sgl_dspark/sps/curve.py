"""A cost that never falls with size: knots joined by lines or, where graphs exist, by stairs."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

_TAIL_SEGMENTS = 3


class _Places:
    """Knot and distance for every size; shared by all curves over the same knots, grown on demand."""

    def __init__(self, sizes: NDArray[np.int64], stairs: bool) -> None:
        self._sizes = sizes
        self._stairs = stairs
        self.knot = np.empty(0, dtype=np.int64)
        self.offset = np.empty(0)

    def reach(self, end: int) -> None:
        """Cover sizes 0 .. end - 1."""
        if end <= self.knot.shape[0]:
            return
        size = np.arange(max(2 * end, 256))
        if self._stairs:
            knot = np.minimum(np.searchsorted(self._sizes, size, side="left"), self._sizes.shape[0] - 1)
        else:
            knot = np.maximum(np.searchsorted(self._sizes, size, side="right") - 1, 0)
        self.offset = np.maximum(size - self._sizes[knot], 0).astype(np.float64)
        self.knot = knot


class Curve:
    """Seconds against a size (verify tokens, drafted rows or requests).

    Between knots the cost is linear, or with ``stairs`` that of the next knot at or above, as for a graph that pads its
    batch. Below the first knot it is the first knot's. Beyond the last it grows, per unit, by the steepest of the last
    three slopes and the average cost per unit, whichever is more: a size nobody measured is never free.

    Parameters
    ----------
    sizes : int [N], N >= 1
        Strictly increasing, at least 1.
    seconds : float [N]
        Finite, non-negative, non-decreasing.
    stairs : bool
        Price each knot instead of a line.

    Raises
    ------
    ValueError
        If the arrays are not as described.
    """

    __slots__ = ("_places", "_slopes", "seconds", "sizes", "stairs")

    def __init__(self, sizes: ArrayLike, seconds: ArrayLike, stairs: bool = False) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.seconds = np.array(seconds, dtype=np.float64)
        self.stairs = bool(stairs)
        self._check()
        self._places = _Places(self.sizes, self.stairs)
        self._slopes = self._slopes_of(self.seconds)

    def _check(self) -> None:
        if self.sizes.ndim != 1 or self.sizes.shape != self.seconds.shape or self.sizes.shape[0] == 0:
            raise ValueError("a cost curve needs one number of seconds for each of its sizes, and at least one")
        if self.sizes[0] < 1 or bool(np.any(np.diff(self.sizes) <= 0)):
            raise ValueError("the sizes of a cost curve must be at least 1 and strictly increasing")
        if (
            not bool(np.all(np.isfinite(self.seconds)))
            or self.seconds[0] < 0
            or bool(np.any(np.diff(self.seconds) < 0))
        ):
            raise ValueError("the seconds of a cost curve must be finite, non-negative and non-decreasing")

    def _slopes_of(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        slopes = np.empty_like(seconds)
        if seconds.shape[0] > 1:
            slopes[:-1] = (seconds[1:] - seconds[:-1]) / (self.sizes[1:] - self.sizes[:-1])
        average = float(seconds[-1]) / float(self.sizes[-1])
        slopes[-1] = max([average, *slopes[-1 - _TAIL_SEGMENTS : -1].tolist()])
        return slopes

    def replaced(self, seconds: NDArray[np.float64]) -> Self:
        """Return the curve with other seconds at the same knots, made non-decreasing by raising what is too low.

        Parameters
        ----------
        seconds : float64 [N]
            Finite, non-negative.
        """
        twin = object.__new__(type(self))
        twin.sizes, twin.stairs, twin._places = self.sizes, self.stairs, self._places
        twin.seconds = np.maximum.accumulate(seconds)
        twin._slopes = twin._slopes_of(twin.seconds)
        return twin

    def at(self, size: int) -> float:
        """Return the seconds at one size, at least 0."""
        self._places.reach(size + 1)
        knot = self._places.knot[size]
        return float(self.seconds[knot] + self._slopes[knot] * self._places.offset[size])

    def slope(self, size: int) -> float:
        """Return seconds per unit around ``size``: from its left knot to the next, at least 0."""
        knot = min(max(int(np.searchsorted(self.sizes, size, side="right")) - 1, 0), self.sizes.shape[0] - 1)
        return float(self._slopes[knot])

    def window(self, first: int, count: int) -> NDArray[np.float64]:
        """Return a new float64 [count]: the seconds at sizes first .. first + count - 1."""
        end = first + count
        self._places.reach(end)
        knot = self._places.knot[first:end]
        seconds = self._slopes.take(knot)
        seconds *= self._places.offset[first:end]
        seconds += self.seconds.take(knot)
        return seconds

    def staircase(self, tiers: ArrayLike) -> Curve:
        """Return the curve priced at ``tiers`` (int [T], increasing): each size costs what the next tier costs."""
        sizes = np.array(tiers, dtype=np.int64)
        return Curve(sizes, [self.at(int(size)) for size in sizes], stairs=True)
