"""Device functions that several kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


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
