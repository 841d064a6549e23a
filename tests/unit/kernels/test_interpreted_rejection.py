from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from dspark_sglang.kernels.draft_block import sample_block
from dspark_sglang.kernels.rejection import verify
from dspark_sglang.kernels.triton_ops import rejection
from sgl_dspark.sampling.block import DraftBlock
from tests.support import kernel_checks as checks
from tests.support.tiny_draft import TinyDrafter

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut rows of the target into several tiles, the last one partly filled."""
    monkeypatch.setattr(rejection, "TILE", 16)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [9, 1, None])
@pytest.mark.parametrize("kinds", ["some", "none", "all"])
def test_same_uniforms_same_tokens(seed: int, size: int | None, kinds: str) -> None:
    lens = [4, 1, 0, 3, 2, 4, 0][seed % 3 :]
    checks.check_verification(CPU, seed=seed, lens=lens, gamma=3, size=size, kinds=kinds, vocab=(45, 16, 11)[seed % 3])


@pytest.mark.parametrize(("lens", "gamma"), [([2, 1, 2, 0], 1), ([1], 1), ([0, 0], 2)])
def test_short_blocks(lens: list[int], gamma: int) -> None:
    for seed in range(3):
        checks.check_verification(CPU, seed=seed, lens=lens, gamma=gamma)


def test_every_count_of_accepted_drafts_occurs() -> None:
    """Else the comparisons above would see one outcome only."""
    assert checks.check_verification(CPU, seed=0, lens=[4] * 12, gamma=3) in range(6, 31)


def test_strides_do_not_matter() -> None:
    checks.check_verification(CPU, seed=1, lens=[3, 4, 2], gamma=3, strided=True)


def test_more_requests_than_one_tile_of_lengths() -> None:
    checks.check_verification(CPU, seed=2, lens=[1, 2, 3] * 7, gamma=2, vocab=20)


def test_no_requests() -> None:
    block = DraftBlock(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3))
    got = verify(block, torch.zeros(0, dtype=torch.int64), target_argmax=torch.zeros(0, dtype=torch.int64))
    assert got.out_tokens.shape == (0, 4)
    assert got.residual_fallbacks.item() == 0


def test_what_is_missing_is_named() -> None:
    block, probs, _ = checks.blocks(4, torch.tensor([2]), 2, 30, 5)
    with pytest.raises(ValueError, match="target_argmax"):
        verify(block, torch.tensor([2]), target_probs=probs, greedy="some")
    with pytest.raises(ValueError, match="greedy_rows"):
        verify(block, torch.tensor([2]), target_probs=probs, target_argmax=probs.argmax(1), greedy="some")


def one_slot(draft: list[float], target: list[float], uniform: float) -> tuple[int, int, int]:
    """Verify token 0, rejected, of a one-slot block; gives accept length, token and fallbacks."""
    probs = torch.tensor([[draft]])
    block = DraftBlock(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1), None, probs, probs[..., 0])
    uniforms = torch.tensor([[1 - 2**-53, uniform]], dtype=torch.float64)
    got = verify(block, torch.tensor([2]), target_probs=torch.tensor([target, target]), uniforms=uniforms)
    return int(got.accept_lens), int(got.out_tokens[0, 0]), int(got.residual_fallbacks)


def test_tokens_without_residual_are_never_drawn() -> None:
    """The whole residual lies in one token, at the end of a row that is wider than a tile."""
    target, draft = [0.0] * 40, [0.0] * 40
    target[0], target[3], target[37] = 0.25, 0.5, 0.25
    draft[0], draft[3] = 0.5, 0.5
    for uniform in (0.0, 0.5, 1 - 2**-53):
        assert one_slot(draft, target, uniform) == (1, 37, 0)


def test_a_rejection_without_residual_draws_from_the_target_and_is_counted() -> None:
    """Possible only where a law is not the one that was drawn from: here the draft's exceeds the target's."""
    target, draft = [0.0] * 20, [0.0] * 20
    target[0], target[18] = 0.5, 0.5
    draft[0], draft[18] = 1.0, 1.0
    assert one_slot(draft, target, 0.9) == (1, 18, 1)


def test_a_target_of_nan_stays_in_range() -> None:
    accepted, token, _ = one_slot([0.5, 0.5, 0.0], [float("nan")] * 3, 0.3)
    assert accepted == 1
    assert 0 <= token < 3


def midpoints(parts: int) -> list[float]:
    return [(i + 0.5) / parts for i in range(parts)]


def test_the_law_of_one_slot_is_exactly_the_targets() -> None:
    """Through both kernels: laws in eighths, so that a grid of uniforms has every outcome with its exact weight."""
    draft = torch.tensor([2, 2, 2, 2]) / 8
    target = torch.tensor([3, 3, 1, 1]) / 8
    bonus = torch.tensor([1, 0, 2, 1]) / 4
    grid = torch.tensor(list(itertools.product(midpoints(4), midpoints(2), midpoints(4))), dtype=torch.float64)
    requests = len(grid)
    drafter = TinyDrafter("none", vocab_size=5)
    logits = torch.cat([draft, torch.zeros(1)]).log().expand(requests, 1, 5)
    drafter.proposal_logits = lambda h: (logits, None)  # type: ignore[method-assign]
    block = sample_block(
        drafter,
        torch.zeros(requests, 1, 6),
        torch.zeros(requests, dtype=torch.int64),
        torch.ones(requests),
        shortlist=4,
        uniforms=grid[:, :1],
        by_token=True,
    )
    rows = torch.stack([target, bonus]).repeat(requests, 1)
    got = verify(block, torch.full((requests,), 2), target_probs=rows, uniforms=grid[:, 1:])
    first = torch.bincount(got.out_tokens[:, 0], minlength=4)
    assert (first * 8).equal((target * 8).long() * requests)
    accepted = got.accept_lens == 2
    for token in range(4):
        after = torch.bincount(got.out_tokens[accepted & (got.out_tokens[:, 0] == token), 1], minlength=4)
        assert (after * 4).equal((bonus * 4).long() * int(after.sum()))


QUARTERS = {(): (3, 1), (0,): (1, 3), (1,): (2, 2), (0, 0): (0, 4), (0, 1): (1, 3), (1, 0): (3, 1), (1, 1): (2, 2)}
"""A target over two tokens whose law depends on the tokens before, in quarters. The draft's law is a half each."""


def target_row(prefix: tuple[int, ...]) -> Tensor:
    return torch.tensor(QUARTERS[prefix]) / 4


@pytest.mark.parametrize("verified", [1, 2, 3])
def test_the_joint_law_of_three_tokens_is_exactly_the_targets(verified: int) -> None:
    """Enumerates drafts and a grid of uniforms; what was not emitted is completed by the target's own law."""
    cases = list(itertools.product((0, 1), (0, 1), midpoints(2), midpoints(2), midpoints(4)))
    tokens = torch.tensor([[a, b] for a, b, *_ in cases])
    probs = torch.full((len(cases), 2, 2), 0.5)
    block = DraftBlock(tokens, torch.zeros(tokens.shape), None, probs, probs[..., 0])
    rows = torch.stack([target_row(tuple(pair[:i])) for pair in tokens.tolist() for i in range(verified)])
    uniforms = torch.tensor([case[2:] for case in cases], dtype=torch.float64)
    got = verify(block, torch.full((len(cases),), verified), target_probs=rows, uniforms=uniforms)
    law: dict[tuple[int, ...], Fraction] = {}
    for emitted, length in zip(got.out_tokens.tolist(), got.accept_lens.tolist(), strict=True):
        heads = {tuple(emitted[:length]): Fraction(1, len(cases))}
        for _ in range(3 - length):
            heads = {(*head, x): mass * QUARTERS[head][x] / 4 for head, mass in heads.items() for x in (0, 1)}
        for sequence, mass in heads.items():
            law[sequence] = law.get(sequence, Fraction(0)) + mass
    for a, b, c in itertools.product((0, 1), repeat=3):
        want = Fraction(QUARTERS[()][a] * QUARTERS[(a,)][b] * QUARTERS[a, b][c], 64)
        assert law.get((a, b, c), Fraction(0)) == want
