"""Uniforms from counters: the same on every rank, and fresh at every replay of a captured graph.

A generator keeps its state outside the graph, or in it and out of reach. Here a number is a function of seed, step,
stream, row and column (SplitMix64 of Steele, Lea and Flood, 2014, whose start is a mix of seed, step and stream), so
that a step counter on the device is all the state there is. Everything is integer arithmetic of torch: no
synchronisation, and the same numbers on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgl_dspark.sampling.seeded import GOLDEN, mixed, to_uniforms

DRAFT, ACCEPT = 0, 1
"""Streams: drawing the block, and accepting it; the two must be independent."""

_STREAMS = 4


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
    start = mixed(mixed(seed) + (step * _STREAMS + stream) * GOLDEN)
    places = torch.arange(1, rows * width + 1, device=seed.device).view(rows, width)
    return to_uniforms(mixed(start + places * GOLDEN))
