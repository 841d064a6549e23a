from __future__ import annotations

import pytest
import torch

from dspark_sglang.kernels.draft_block import sample_block
from dspark_sglang.kernels.triton_ops import draft_block
from tests.support import kernel_checks as checks
from tests.support.tiny_draft import TinyDrafter

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("seed", "shape"),
    [
        (0, {}),
        (1, {"requests": 1, "gamma": 1, "size": 1}),
        (2, {"size": 33, "rank": 7, "by_token": True}),
        (3, {"kind": "none", "gamma": 5, "size": 16}),
        (4, {"gamma": 7, "size": 60, "rank": 130}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_laws_and_draws(seed: int, shape: dict, dtype: torch.dtype) -> None:
    checks.check_draft_block(CPU, seed=seed, dtype=dtype, **shape)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["none", "vanilla"])
def test_draws_are_those_of_the_reference(seed: int, kind: str) -> None:
    checks.check_draws_of_the_reference(CPU, seed=seed, kind=kind)


def test_greedy_rows_take_the_first_of_equal_candidates() -> None:
    checks.check_greedy_ties(CPU)


def test_no_requests() -> None:
    drafter = TinyDrafter("vanilla")
    block = sample_block(
        drafter, torch.zeros(0, 3, 6), torch.zeros(0, dtype=torch.int64), torch.zeros(0), shortlist=4, greedy="some"
    )
    assert block.tokens.shape == (0, 3)
    assert block.probs is not None
    assert block.probs.shape == (0, 3, 4)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("logits", "greedy_choice", "drawn"),
    [
        ([-INF, -INF, 2.0, -INF], 2, 2),
        ([1.0, 1.0, 1.0, 1.0], 0, 3),
        ([0.0, NAN, 5.0, NAN], 1, 3),
        ([-INF, -INF, -INF, -INF], 0, 3),
    ],
)
def test_choices_stay_in_range_and_follow_torch_on_odd_logits(
    logits: list[float], greedy_choice: int, drawn: int
) -> None:
    """The uniform is the largest below 1: the last candidate that has weight."""
    base = torch.tensor(logits).expand(2, 1, 4)
    ids = torch.tensor([40, 10, 30, 20]).expand(2, 1, 4)
    anchors, uniforms = torch.zeros(2, dtype=torch.int64), torch.full((2, 1), 1 - 2**-53, dtype=torch.float64)
    tokens, _, _ = draft_block.launch(base, ids, None, anchors, torch.tensor([0.0, 1.0]), uniforms)
    assert base[0, 0].argmax().item() == greedy_choice
    assert tokens.flatten().tolist() == [ids[0, 0, greedy_choice], ids[0, 0, drawn]]


def test_strides_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(3, 2, 5, generator=generator)
    ids = torch.randperm(60, generator=generator)[:30].view(3, 2, 5)
    weights = torch.randn(60, 8, generator=generator), torch.randn(60, 8, generator=generator)
    wide = tuple(torch.cat([w, w], 1)[:, :8] for w in weights)
    anchors, temperatures = torch.tensor([3, 4, 5]), torch.tensor([1.0, 0.0, 0.5])
    uniforms = torch.rand(3, 2, generator=generator)
    want = draft_block.launch(base, ids, weights, anchors, temperatures, uniforms)
    got = draft_block.launch(
        base.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        ids.transpose(0, 1).contiguous().transpose(0, 1),
        wide,
        torch.stack([anchors, anchors], 1)[:, 0],
        torch.stack([temperatures, temperatures], 1)[:, 1],
        uniforms.T.contiguous().T,
    )
    for one, other in zip(want, got, strict=True):
        assert one.equal(other)
