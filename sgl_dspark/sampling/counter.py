"""Uniforms from counters: the same on every rank, and fresh at every replay of a captured graph.

A generator keeps its state outside the graph, or in it and out of reach. Here a number is a function of seed, step,
stream, row and column (SplitMix64 of Steele, Lea and Flood, 2014, whose start is a mix of seed, step and stream), so
that a step counter on the device is all the state there is. Everything is integer arithmetic of torch: no
synchronisation, and the same numbers on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

DRAFT, ACCEPT = 0, 1
"""Streams: drawing the block, and accepting it; the two must be independent."""

_STREAMS = 4
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)


def counter_uniforms(seed: Tensor, step: Tensor, rows: int, width: int, stream: int) -> Tensor:
    """Give uniforms in [0, 1) with 53 random bits.

    Parameters
    ----------
    seed, step : int64 scalar
        On the device where the numbers are needed. ``step`` must not repeat under one seed.
    rows, width : int
        Shape.
    stream : int
        `DRAFT` or `ACCEPT`.

    Returns
    -------
    fp64 [rows, width]
        A number depends on its row and column, not on how many rows there are.
    """
    start = _mix(_mix(seed) + (step * _STREAMS + stream) * _GOLDEN)
    places = torch.arange(1, rows * width + 1, device=seed.device).view(rows, width)
    bits = _shifted(_mix(start + places * _GOLDEN), 11)
    return bits.to(torch.float64) * 2.0**-53


def _mix(value: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser, a bijection of 64 bits; products wrap around."""
    value = (value ^ _shifted(value, 30)) * _FIRST
    value = (value ^ _shifted(value, 27)) * _SECOND
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift right without the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
