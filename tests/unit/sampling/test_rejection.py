from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl_dspark.sampling.block import DraftBlock, sample_block
from sgl_dspark.sampling.rejection import acceptance_probability, residual_law, verify
from tests.support.tiny_draft import TinyDrafter

ALMOST_ONE = 1 - 2**-53


def block_of(tokens: list[list[int]], probs: Tensor | None = None, candidates: Tensor | None = None) -> DraftBlock:
    ids = torch.tensor(tokens)
    at = None
    if probs is not None:
        index = ids.unsqueeze(2) if candidates is None else (candidates == ids.unsqueeze(2)).int().argmax(2, True)
        at = probs.gather(2, index).squeeze(2)
    return DraftBlock(ids, torch.zeros(ids.shape), candidates, probs, at)


def test_acceptance_probability() -> None:
    target, draft = torch.tensor([0.2, 0.6, 0.0, 0.3, 0.3]), torch.tensor([0.4, 0.5, 0.5, 0.3, 0.0])
    torch.testing.assert_close(acceptance_probability(target, draft), torch.tensor([0.5, 1, 0, 1, 0]))


def test_residual_law_is_the_normalised_excess() -> None:
    target, draft = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.5, 0.1, 0.4]])
    law, empty = residual_law(target, draft)
    torch.testing.assert_close(law, torch.tensor([[2 / 3, 1 / 3, 0]]))
    assert not empty.any()
    listed, _ = residual_law(target, torch.tensor([[0.8, 0.2]]), torch.tensor([[2, 0]]))
    torch.testing.assert_close(listed, torch.tensor([[0.5 / 0.7, 0.2 / 0.7, 0]]))


def test_residual_without_mass_falls_back_to_the_target() -> None:
    target = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    law, empty = residual_law(target, torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
    assert empty.tolist() == [True, False]
    assert law.tolist() == [[0.25, 0.75], [0.0, 1.0]]


def test_inputs_of_the_pure_functions_are_left_alone() -> None:
    target, draft = torch.tensor([[0.7, 0.3]]), torch.tensor([[0.5, 0.5]])
    residual_law(target, draft)
    residual_law(target, draft, torch.tensor([[0, 1]]))
    assert target.equal(torch.tensor([[0.7, 0.3]]))
    assert draft.equal(torch.tensor([[0.5, 0.5]]))


def test_greedy_batch_of_every_outcome() -> None:
    # Lengths 3, 3, 3, 1, 2: all accepted, rejected at once, rejected second, no draft verified, cut short of a match.
    block = block_of([[4, 5], [4, 5], [4, 5], [4, 5], [4, 5]])
    target = torch.tensor([4, 5, 6, 3, 5, 6, 4, 7, 6, 4, 4, 5])
    got = verify(block, torch.tensor([3, 3, 3, 1, 2]), target_argmax=target)
    assert got.accept_lens.tolist() == [3, 1, 2, 1, 2]
    assert got.out_tokens.tolist() == [[4, 5, 6], [3, 0, 0], [4, 7, 0], [4, 0, 0], [4, 5, 0]]
    assert got.residual_fallbacks.item() == 0
    assert target.tolist() == [4, 5, 6, 3, 5, 6, 4, 7, 6, 4, 4, 5]


def test_padded_target_rows_are_not_read() -> None:
    block = block_of([[1, 2]])
    got = verify(block, torch.tensor([2]), target_argmax=torch.tensor([1, 3, 99, 99]))
    assert got.out_tokens.tolist() == [[1, 3, 0]]


def test_sampled_accepts_below_the_ratio_and_rejects_at_it() -> None:
    draft = torch.tensor([[[0.8, 0.2]]])
    target = torch.tensor([[0.4, 0.6], [0.0, 1.0]])
    block = block_of([[0]], draft)
    ratio = float(acceptance_probability(target[0, :1], draft[0, 0, :1]).double())
    for u, tokens in ((ratio - 2**-30, [0, 1]), (ratio, [1, 0])):
        uniforms = torch.tensor([[u, 0.5]], dtype=torch.float64)
        got = verify(block, torch.tensor([2]), target_probs=target, uniforms=uniforms)
        assert got.out_tokens.tolist() == [tokens]
        assert got.accept_lens.tolist() == [1 + (u < ratio)]


def grid_law(
    block: DraftBlock, verify_lens: list[int], target: Tensor, forced: list[list[float]], r: int, slot: int
) -> tuple[Tensor, Tensor]:
    """Replay one request over a grid of final uniforms; return the shares of its token at ``slot`` and its lengths."""
    points = 1000
    start = sum(verify_lens[:r])
    rows = target[start : start + verify_lens[r]].repeat(points, 1)
    grid = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    uniforms = torch.cat([torch.tensor(forced[r], dtype=torch.float64).expand(points, -1), grid[:, None]], 1)
    repeated = [None if x is None else x[r : r + 1].expand(points, *x.shape[1:]) for x in vars(block).values()]
    got = verify(DraftBlock(*repeated), torch.full((points,), verify_lens[r]), target_probs=rows, uniforms=uniforms)
    return got.out_tokens[:, slot].bincount(minlength=target.shape[1]) / points, got.accept_lens


@pytest.mark.parametrize("shortlist", [None, 3])
def test_final_token_follows_the_residual_or_the_bonus_law(shortlist: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    drafter = TinyDrafter("rnn", seed=1)
    h, anchors = torch.randn(3, 3, 6, generator=generator), torch.tensor([1, 2, 3])
    block = sample_block(drafter, h, anchors, torch.ones(3), shortlist=shortlist, generator=generator)
    lens = [4, 3, 1]
    target = torch.randn(sum(lens), 7, generator=generator).softmax(-1)
    # Uniform 0 accepts whatever the target can emit; almost 1 rejects whatever is not certain.
    forced = [[0.0, ALMOST_ONE, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    target[1].scatter_(0, block.tokens[0, 1:2], 1e-3)
    target[1] /= target[1].sum()
    dense = torch.zeros(3, 3, 7)
    dense = block.probs if block.candidates is None else dense.scatter_(2, block.candidates, block.probs)
    residual, _ = residual_law(target[1:2], dense[0, 1:2])
    wanted = [(1, residual[0]), (2, target[4 + 2]), (0, target[7])]
    for r, (slot, law) in enumerate(wanted):
        shares, accept_lens = grid_law(block, lens, target, forced, r, slot)
        assert (accept_lens == slot + 1).all()
        assert (shares - law).abs().max() <= 1.001e-3


def test_mixed_batch_equals_the_separate_batches() -> None:
    generator = torch.Generator().manual_seed(4)
    drafter = TinyDrafter("vanilla", seed=2)
    h, anchors = torch.randn(4, 3, 6, generator=generator), torch.tensor([1, 2, 3, 4])
    temperatures = torch.tensor([0.0, 1.0, 0.0, 0.7])
    greedy = temperatures == 0
    lens = torch.tensor([4, 2, 1, 4])
    for _ in range(50):
        block = sample_block(drafter, h, anchors, temperatures, generator=generator)
        logits = torch.randn(11, 7, generator=generator) * 2
        best, probs = logits.argmax(-1), logits.softmax(-1)
        best[:2] = block.tokens[0, :2]
        uniforms = torch.rand(4, 4, dtype=torch.float64, generator=generator)
        # What a request of the other kind would read is poisoned.
        owner = torch.arange(4).repeat_interleave(lens)
        poisoned = probs.masked_fill(greedy[owner, None], torch.nan)
        got = verify(block, lens, target_argmax=best, target_probs=poisoned, greedy_rows=greedy, uniforms=uniforms)
        for r in range(4):
            mine, own = owner == r, [None if x is None else x[r : r + 1] for x in vars(block).values()]
            alone = verify(
                DraftBlock(*own),
                lens[r : r + 1],
                **({"target_argmax": best[mine]} if greedy[r] else {"target_probs": probs[mine]}),
                uniforms=uniforms[r : r + 1],
            )
            assert torch.equal(got.accept_lens[r : r + 1], alone.accept_lens)
            assert torch.equal(got.out_tokens[r : r + 1], alone.out_tokens)
        assert got.residual_fallbacks.item() == 0


def test_fallbacks_are_counted_for_rejections_only() -> None:
    law = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    block = block_of([[0], [0]], law)
    # A draft law that claims more than it had leaves a rejection without residual mass.
    inflated = DraftBlock(block.tokens, block.confidence_logits, None, law, torch.tensor([[0.9], [0.9]]))
    target = torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.5, 0.5], [0.0, 1.0]])
    uniforms = torch.tensor([[0.8, 0.7], [0.1, 0.7]], dtype=torch.float64)
    got = verify(inflated, torch.tensor([2, 2]), target_probs=target, uniforms=uniforms)
    assert got.residual_fallbacks.item() == 1
    assert got.out_tokens.tolist() == [[1, 0], [0, 1]]


def test_an_empty_batch_is_an_empty_verdict() -> None:
    none = torch.empty(0, dtype=torch.int64)
    block = DraftBlock(none.view(0, 3), torch.empty(0, 3), None, torch.empty(0, 3, 5), torch.empty(0, 3))
    for kwargs in ({"target_argmax": none}, {"target_probs": torch.empty(0, 5)}):
        got = verify(block, none, **kwargs)
        assert got.accept_lens.shape == (0,)
        assert got.out_tokens.shape == (0, 4)


def test_what_is_missing_is_named() -> None:
    block, lens = block_of([[1]]), torch.tensor([2])
    with pytest.raises(ValueError, match="target_argmax"):
        verify(block, lens)
    with pytest.raises(ValueError, match="target_probs"):
        verify(block, lens, target_probs=torch.ones(2, 3) / 3)
    with pytest.raises(ValueError, match="greedy_rows"):
        verify(
            block_of([[1]], torch.ones(1, 1, 3) / 3),
            lens,
            target_argmax=torch.tensor([0, 0]),
            target_probs=torch.ones(2, 3) / 3,
            greedy="some",
        )
