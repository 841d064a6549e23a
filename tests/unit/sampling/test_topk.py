from __future__ import annotations

import pytest
import torch

from sgl_dspark.sampling.topk import largest


@pytest.mark.parametrize("length", [7, 64, 96, 4096, 4100, 49152])
@pytest.mark.parametrize("k", [1, 5, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_values_as_topk(length: int, k: int, dtype: torch.dtype) -> None:
    k = min(k, length)
    # bf16 makes ties, which may be ordered differently but hold the same values.
    values = torch.randn(3, length, generator=torch.Generator().manual_seed(0)).to(dtype)
    top, ids = largest(values, k)
    assert torch.equal(top, values.topk(k).values)
    assert torch.equal(values.gather(1, ids), top)
    assert all(len(set(row)) == k for row in ids.tolist())
    unordered, _ = largest(values, k, ordered=False)
    assert torch.equal(unordered.sort(descending=True).values, top)


def test_minus_infinity_rows() -> None:
    values = torch.full((1, 4096), -torch.inf)
    values[0, 17] = 1.0
    top, ids = largest(values, 3)
    assert top.tolist() == [[1.0, -torch.inf, -torch.inf]]
    assert ids[0, 0] == 17
