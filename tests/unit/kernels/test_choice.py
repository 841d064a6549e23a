"""Where operations run, and that a CPU gets what it had: the references, without Triton."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dspark_sglang.kernels import admission, draft_block
from dspark_sglang.kernels.choice import kernels_run_on, power_of_two
from sgl_dspark.errors import ConfigError
from sgl_dspark.sampling.block import sample_block
from tests.support.tiny_draft import HEADS, TinyDrafter

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_kernels_are_for_cuda_and_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGL_DSPARK_TRITON", raising=False)
    assert kernels_run_on(CUDA)
    assert not kernels_run_on(CPU)
    monkeypatch.setenv("SGL_DSPARK_TRITON", "0")
    assert not kernels_run_on(CUDA)
    monkeypatch.setenv("SGL_DSPARK_TRITON", "yes")
    with pytest.raises(ConfigError, match="SGL_DSPARK_TRITON"):
        kernels_run_on(CUDA)


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]


EVERY_OPERATION = """
import sys, torch
from sgl_dspark.sampling.block import DraftBlock
from dspark_sglang.kernels import admission, context_kv, draft_block, rejection
from tests.support.drafts import tiny_drafter
from tests.support.tiny_draft import TinyDrafter
ids = torch.zeros(2, dtype=torch.int64)
block = draft_block.sample_block(TinyDrafter("vanilla"), torch.zeros(2, 3, 6), ids, torch.ones(2), shortlist=3)
admission.admit(admission.survival_of(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3)), 2)
rejection.verify(block, ids + 2, target_probs=torch.full((4, 7), 1 / 7))
drafter = tiny_drafter()
drafter.fuse_for_serving()
config = drafter.config
buffer = torch.zeros(config.num_hidden_layers, 2, 5, config.num_key_value_heads, config.head_dim)
context_kv.write_context(drafter, buffer, torch.ones(2, config.num_features), ids, torch.tensor([1, 3]))
assert buffer[:, :, [1, 3]].abs().sum() > 0 and buffer[:, :, [0, 2, 4]].abs().sum() == 0
assert not [name for name in sys.modules if name.partition(".")[0] == "triton" or "triton_ops" in name]
"""


def test_nothing_on_a_cpu_imports_triton() -> None:
    run = subprocess.run([sys.executable, "-c", EVERY_OPERATION], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("shortlist", [None, 3])
def test_drafts_are_the_references(kind: str, shortlist: int | None) -> None:
    h, anchors = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 5])
    temperatures, given = torch.tensor([0.0, 1.0]), {"uniforms": torch.rand(2, 3), "shortlist": shortlist}
    want = sample_block(TinyDrafter(kind), h, anchors, temperatures, **given)
    got = draft_block.sample_block(TinyDrafter(kind), h, anchors, temperatures, **given)
    assert got.tokens.equal(want.tokens)
    assert got.probs.equal(want.probs)


def test_a_budget_may_be_a_tensor() -> None:
    survival = torch.tensor([[0.5, 0.5, 0.2], [1.0, 0.5, 0.0]])
    for budget in range(8):
        assert admission.admit(survival, torch.tensor(budget)).equal(admission.admit(survival, budget))
