"""The decoder of training computes the same with the ragged kernel as with torch's attention."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytest.importorskip("numba")

from dspark_sglang.attention.offline import plan_attention
from sgl_dspark.model.target import plan_torch_attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [16, 24])
@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("rows", [None, [3, 0]])
def test_equals_torch(dtype: torch.dtype, dim: int, new: int, rows: list[int] | None) -> None:
    generator = torch.Generator().manual_seed(new + dim)
    k, v = (torch.randn(4, 30, 2, dim, generator=generator).to(dtype) for _ in range(2))
    lengths = torch.tensor([0, 7, 20, 3]) if rows is None else torch.tensor([3, 11])
    places = None if rows is None else torch.tensor(rows)
    q = torch.randn(len(lengths), new, 6, dim, generator=generator).to(dtype)
    wanted = plan_torch_attention(lengths, new, places)(q, k, v)
    found = plan_attention(lengths, new, places)(q, k, v)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


def test_it_is_found_by_its_entry_point_without_importing_sglang() -> None:
    code = (
        "import sys; from sgl_dspark.model.target import _find_attention; "
        "assert _find_attention('cpu').__module__ == 'dspark_sglang.attention.offline'; "
        "assert _find_attention('cuda').__module__ == 'sgl_dspark.model.target'; "
        "assert 'sglang' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
