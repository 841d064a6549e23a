"""Device functions that several kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mixed(x):
    """Mix the bits of uint64 ``x`` (splitmix64); see ``sgl_dspark.sampling.seeded``."""
    FIRST: tl.constexpr = 0xBF58476D1CE4E5B9
    SECOND: tl.constexpr = 0x94D049BB133111EB
    x = (x ^ (x >> 30)) * FIRST
    x = (x ^ (x >> 27)) * SECOND
    return x ^ (x >> 31)


@triton.jit
def counter_uniforms(counter, row, columns, PURPOSE: tl.constexpr):
    """Give the uniforms of one row at ``columns``; equal to ``kernels.counter.step_uniforms`` bit for bit."""
    STEP: tl.constexpr = 0x9E3779B97F4A7C15
    seed = tl.load(counter).to(tl.uint64)
    # 2**24 = MAX_ROWS * MAX_COLUMNS, 64 = MAX_COLUMNS.
    position = (2 * tl.load(counter + 1) + PURPOSE) * 16777216 + row * 64 + columns
    bits = mixed(mixed(seed + STEP) + position.to(tl.uint64) * STEP) >> 11
    return bits.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def first_passing(through, weights, at, SIZE: tl.constexpr):
    """Give the first index whose cumulative weight ``through`` exceeds ``at``; -1 if no weight is positive.

    Invariant: an index of weight 0 is never given. Parallel sums are monotone only up to rounding, so the condition
    on the weight is not implied, and where none passes the last index with weight is taken.
    """
    index = tl.arange(0, SIZE)
    positive = weights > 0
    first = tl.min(tl.where(positive & (through > at), index, SIZE))
    last = tl.max(tl.where(positive, index, -1))
    return tl.where(first < SIZE, first, last)


@triton.jit
def first_largest(values, inside, SIZE: tl.constexpr):
    """Give the first index of the largest value, as ``torch.argmax`` does: NaN counts as larger than all."""
    index = tl.arange(0, SIZE)
    nan = (values != values) & inside
    best = tl.max(tl.where(nan | (inside == 0), float("-inf"), values))
    any_nan = tl.max(nan.to(tl.int32)) > 0
    chosen = tl.where(any_nan, nan, values == best)
    return tl.min(tl.where(chosen, index, SIZE - 1))
