"""Uniforms that belong to a seed and a position, so that a request with a seed repeats itself.

A seeded request takes, at every position, the token at which the cumulative law of the target passes the uniform of
(seed, position). Drafts are drawn in the same way from the draft's law and accepted if they are that token, so that
what comes out depends neither on how much is drafted or verified nor on neighbours: only on the seed and the target's
laws. Over seeds each token has the target's law.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Constants of splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit numbers.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def mixed(values: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser to int64 values, a bijection of 64 bits; products wrap around."""
    values = (values ^ _shifted(values, 30)) * _FIRST
    values = (values ^ _shifted(values, 27)) * _SECOND
    return values ^ _shifted(values, 31)


def to_uniforms(bits: Tensor) -> Tensor:
    """Make fp64 uniforms in [0, 1) of the 53 highest bits of int64 values."""
    return _shifted(bits, 11).to(torch.float64) * 2.0**-53


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift right without copying the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def seeded_uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """Give the uniform of each seed and position.

    Parameters
    ----------
    seeds : int64 [...]
    positions : int64 [...]
        Broadcast against ``seeds``.

    Returns
    -------
    fp64 [...]
        In [0, 1), 53 bits.
    """
    return to_uniforms(mixed(mixed(seeds + GOLDEN) + positions * GOLDEN))
