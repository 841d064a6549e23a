"""Uniforms that belong to a step counter on the device, so that graph replays draw anew and ranks draw the same.

The counter is int64 [2] in device memory: a seed, the same on every rank, and the number of the step. Whoever captures
a graph adds 1 to the second between replays. A uniform depends on seed, step, purpose, row and column only: not on how
many rows there are, so that padding a batch to a graph's size changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sgl_dspark.sampling.seeded import seeded_uniforms

if TYPE_CHECKING:
    from torch import Tensor

DRAFT, VERIFY = 0, 1
"""Purposes: drawing a block, and accepting it. Invariant: the two never share a uniform."""

MAX_COLUMNS, MAX_ROWS = 64, 2**18


def step_uniforms(counter: Tensor, purpose: int, rows: int, columns: int) -> Tensor:
    """Give the uniforms of one step; what the kernels compute in place, bit for bit.

    Parameters
    ----------
    counter : int64 [2]
        Seed and step; the step in [0, 2**38).
    purpose : int
        ``DRAFT`` or ``VERIFY``.
    rows, columns : int
        At most ``MAX_ROWS`` and ``MAX_COLUMNS``.

    Returns
    -------
    fp64 [rows, columns]
        In [0, 1), 53 bits.

    Raises
    ------
    ValueError
        If rows or columns exceed their bounds.
    """
    check_extent(rows, columns)
    device = counter.device
    at = torch.arange(rows, device=device).unsqueeze(1) * MAX_COLUMNS + torch.arange(columns, device=device)
    return seeded_uniforms(counter[0], (2 * counter[1] + purpose) * (MAX_ROWS * MAX_COLUMNS) + at)


def check_extent(rows: int, columns: int) -> None:
    """Refuse more rows or columns than a step has uniforms for.

    Raises
    ------
    ValueError
        If rows or columns exceed their bounds.
    """
    if rows > MAX_ROWS or columns > MAX_COLUMNS:
        raise ValueError(
            f"A step counter gives uniforms for {MAX_ROWS} requests of {MAX_COLUMNS} slots, not {rows} of {columns}; "
            "pass uniforms instead."
        )
