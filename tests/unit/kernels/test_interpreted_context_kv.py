from __future__ import annotations

import pytest
import torch

from dspark_sglang.kernels.triton_ops import context_kv
from tests.support import kernel_checks as checks

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 6), (5, 16), (0, 6)])
@torch.no_grad()
def test_written_keys_and_values(dtype: torch.dtype, tokens: int, head_dim: int) -> None:
    checks.check_context_kv(CPU, dtype=dtype, tokens=tokens, head_dim=head_dim)


@torch.no_grad()
def test_rows_that_pad_a_batch_write_nothing() -> None:
    checks.check_context_kv(CPU, dtype=torch.float32, tokens=7, pad=True)


def test_strides_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    layers, heads, size, tokens = 2, 3, 8, 4
    raw = torch.randn(tokens, 2 * layers * heads, size, generator=generator)
    scale, table = torch.rand(layers * heads, size), torch.randn(20, 2, size, generator=generator)
    positions, slots = torch.tensor([3, 0, 19, 7]), torch.tensor([5, 1, 0, 3])
    want = torch.zeros(layers, 2, 6, heads, size)
    context_kv.launch(raw, scale, table, positions, slots, want, 1e-6)
    got = torch.zeros(layers, 2, 12, heads, 2 * size)[:, :, ::2, :, :size]
    context_kv.launch(
        raw.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        scale.T.contiguous().T,
        torch.cat([table, table])[:20],
        torch.stack([positions, positions], 1)[:, 0],
        torch.stack([slots, slots], 1)[:, 0],
        got,
        1e-6,
    )
    assert got.equal(want)
