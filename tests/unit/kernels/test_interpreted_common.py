"""The device functions that kernels share, each alone."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from dspark_sglang.kernels.triton_ops.common import first_largest, first_passing


@triton.jit
def passing_kernel(through, weights, at, out, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(out, first_passing(tl.load(through + index), tl.load(weights + index), tl.load(at), SIZE))


@triton.jit
def largest_kernel(values, count, out, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(out, first_largest(tl.load(values + index), index < count, SIZE))


def fp64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("weights", "through", "at", "index"),
    [
        ((0.25, 0.25, 0.25, 0.25), None, 0.0, 0),
        ((0.25, 0.25, 0.25, 0.25), None, 0.5, 2),
        ((0.25, 0.25, 0.25, 0.25), None, 0.49, 1),
        ((0.0, 0.0, 1.0, 0.0), None, 0.0, 2),
        # Rounding let a parallel sum rise at an index without weight, or end below what is passed.
        ((0.5, 0.0, 0.5, 0.0), (0.5, 0.500001, 1.0, 1.0), 0.5, 2),
        ((0.5, 0.5, 0.0, 0.0), (0.5, 0.999999, 1.0, 1.0), 0.9999995, 1),
        ((0.0, 0.0, 0.0, 0.0), None, 0.0, -1),
        ((float("nan"),) * 4, None, float("nan"), -1),
    ],
)
def test_first_passing(weights: tuple, through: tuple | None, at: float, index: int) -> None:
    law = fp64(*weights)
    out = torch.full((1,), 99)
    passing_kernel[(1,)](law.cumsum(0) if through is None else fp64(*through), law, fp64(at), out, SIZE=4)
    assert out.item() == index


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "values",
    [[1.0, 3.0, 3.0], [-INF, -INF, -INF], [-INF, 2.0, -INF], [INF, 1.0, NAN], [NAN, NAN, 0.0], [-0.0, 0.0, -1.0]],
)
def test_first_largest_is_torchs_argmax(values: list[float]) -> None:
    """The lane beyond the values holds more than all of them."""
    out = torch.full((1,), 99)
    largest_kernel[(1,)](torch.tensor([*values, INF]), 3, out, SIZE=4)
    assert out.item() == torch.tensor(values).argmax().item()
