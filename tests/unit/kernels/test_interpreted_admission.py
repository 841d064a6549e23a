from __future__ import annotations

import pytest
import torch

from dspark_sglang.kernels import admission
from dspark_sglang.kernels.triton_ops import admission as ops
from tests.support import kernel_checks as checks

CPU = torch.device("cpu")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few slots fill several tiles."""
    monkeypatch.setattr(ops, "TILE", 16)
    monkeypatch.setattr(ops, "ROWS", 4)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("requests", "gamma"), [(1, 1), (5, 3), (9, 1), (7, 7)])
@pytest.mark.parametrize("levels", [None, 1])
def test_lengths_equal_the_reference(requests: int, gamma: int, levels: int | None) -> None:
    checks.check_admission(CPU, seed=requests, requests=requests, gamma=gamma, levels=levels)


def test_ties_go_to_the_first_request_and_slot() -> None:
    survival = torch.tensor([[0.5, 0.5, 0.2], [1.0, 0.5, 0.5], [0.5, 0.0, 0.0]])
    lens = [admission.admit(survival, k).tolist() for k in range(10)]
    assert lens[:5] == [[0, 0, 0], [0, 1, 0], [1, 1, 0], [2, 1, 0], [2, 2, 0]]
    assert lens[5:] == [[2, 3, 0], [2, 3, 1], [3, 3, 1], [3, 3, 1], [3, 3, 1]]


def test_a_nan_confidence_ends_its_block() -> None:
    nan = float("nan")
    logits = torch.tensor([[3.0, nan, 3.0], [nan, 3.0, 3.0], [float("inf"), 0.0, -float("inf")]])
    survival = admission.survival_of(logits, torch.ones(3, 3), torch.zeros(3, 3))
    assert survival[0, 1:].tolist() == [0, 0]
    assert survival[1].tolist() == [0, 0, 0]
    assert survival[2].tolist() == [1.0, 0.5, 0.0]
    assert admission.admit(survival, 9).tolist() == [1, 0, 2]


def test_survival_that_is_nan_ranks_as_the_reference_ranks_it() -> None:
    survival = torch.tensor([[0.9, 0.4], [float("nan"), 0.3]])
    assert admission.admit(survival, 2).tolist() == [1, 0]


def test_no_requests_and_strides() -> None:
    empty = torch.zeros(0, 4)
    assert admission.survival_of(empty, empty, empty).shape == (0, 4)
    assert admission.admit(empty, 3).shape == (0,)
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    inverse, biases = torch.ones(1, 5), torch.zeros(1, 5)
    survival = admission.survival_of(logits.T.contiguous().T, inverse, biases)
    assert survival.equal(admission.survival_of(logits, inverse.expand(6, 5), biases.expand(6, 5)))
    for budget in (3, 11):
        assert admission.admit(survival.T.contiguous().T, budget).equal(admission.admit(survival, budget))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_taken_as_fp32(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    ones, zeros = torch.ones(3, 4), torch.zeros(3, 4)
    survival = admission.survival_of(logits, ones, zeros)
    assert survival.dtype == torch.float32
    assert survival.equal(admission.survival_of(logits.float(), ones, zeros))
