"""What the interpreter runs, the compiler may refuse: machine code for three generations of devices, without one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from dspark_sglang.kernels.triton_ops import admission, context_kv, draft_block, rejection
from tests.support.compile_kernels import compiling_for

V = 151_936


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def launch_all(gamma: int, dtype: torch.dtype) -> None:
    """Launch each kernel as a server does: a large vocabulary, lists of candidates, some or no random numbers."""
    requests, size, rank = 4, 64, 256
    weights = torch.zeros(4096, rank, dtype=dtype), torch.zeros(4096, rank, dtype=dtype)
    base, temperatures = torch.zeros(requests, gamma, size), torch.ones(requests)
    uniforms = torch.zeros(requests, gamma, dtype=torch.float64)
    for given, head in ((uniforms, weights), (None, weights), (None, None)):
        draft_block.launch(base, ints(requests, gamma, size), head, ints(requests), temperatures, given)
    layers, heads, dim = 5, 8, 128
    context_kv.launch(
        torch.zeros(3, 2 * layers * heads, dim, dtype=dtype),
        torch.zeros(layers * heads, dim, dtype=dtype),
        torch.zeros(50, 2, dim, dtype=dtype),
        ints(3),
        ints(3),
        torch.zeros(layers, 2, 9, heads, dim, dtype=dtype),
        1e-6,
    )
    survival = admission.launch_survival(*torch.zeros(3, requests, gamma))
    admission.launch_admit(survival, 3)
    admission.launch_admit(survival, ints())
    probs = torch.zeros(requests * (gamma + 1), V)
    rows, tokens, lens = ints(len(probs)), ints(requests, gamma), ints(requests)
    token_probs, greedy = torch.zeros(requests, gamma), torch.ones(requests, dtype=torch.bool)
    sparse = ints(requests, gamma, size), torch.zeros(requests, gamma, size), token_probs
    dense = None, torch.zeros(requests, gamma, V), token_probs
    uniforms = torch.zeros(requests, gamma + 1, dtype=torch.float64)
    rejection.launch(tokens, None, lens, None, rows, None, None)
    rejection.launch(tokens, sparse, lens, probs, None, None, uniforms)
    rejection.launch(tokens, sparse, lens, probs, rows, greedy, uniforms)
    rejection.launch(tokens, dense, lens, probs, rows, greedy, uniforms)


@pytest.mark.parametrize(
    ("capability", "gamma", "dtype"),
    [(80, 7, torch.float16), (90, 7, torch.bfloat16), (90, 1, torch.float32), (100, 5, torch.bfloat16)],
)
def test_every_kernel_compiles(
    capability: int, gamma: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with compiling_for(capability) as compiled:
        launch_all(gamma, dtype)
    assert Counter(name for name, _ in compiled) == {
        "draft_block_kernel": 3,
        "context_kv_kernel": 1,
        "survival_kernel": 1,
        "admit_kernel": 2,
        "masses_kernel": 3,
        "verdict_kernel": 4,
    }
    assert all(kernel.asm["cubin"] for _, kernel in compiled)
