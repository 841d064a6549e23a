from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl_dspark.sampling.block import sample_block
from tests.support.tiny_draft import HEADS, TinyDrafter

R, GAMMA, V, D = 3, 4, 7, 6


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(R, GAMMA, D, generator=generator), torch.randint(0, V, (R,), generator=generator)


def dense(candidates: Tensor | None, probs: Tensor) -> Tensor:
    if candidates is None:
        return probs
    return torch.zeros(*probs.shape[:2], V).scatter_(2, candidates, probs)


def forced_logits(drafter: TinyDrafter, h: Tensor, previous: Tensor) -> Tensor:
    """Return [R, gamma, V] from the training path of the head."""
    base = drafter.base_logits(h)
    if drafter.markov_head is None:
        return base
    return base + drafter.markov_head.bias(drafter.markov_head.teacher_forced(previous, h))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("shortlist", [None, 1, 3, V, V + 9])
def test_laws_are_the_teacher_forced_laws_of_the_drawn_tokens(kind: str, shortlist: int | None) -> None:
    drafter = TinyDrafter(kind)
    h, anchors = inputs()
    temperatures = torch.tensor([1.0, 0.6, 2.0])
    block = sample_block(
        drafter, h, anchors, temperatures, shortlist=shortlist, generator=torch.Generator().manual_seed(3)
    )
    previous = torch.cat([anchors[:, None], block.tokens[:, :-1]], 1)
    logits = forced_logits(drafter, h, previous)
    if shortlist is not None and shortlist < V:
        outside = torch.ones(R, GAMMA, V, dtype=torch.bool)
        outside.scatter_(2, drafter.base_logits(h).topk(shortlist).indices, False)
        logits = logits.masked_fill(outside, -torch.inf)
        assert block.probs.shape == (R, GAMMA, shortlist)
    else:
        assert block.candidates is None
    law = (logits / temperatures[:, None, None]).softmax(-1)
    torch.testing.assert_close(dense(block.candidates, block.probs), law, rtol=1e-5, atol=1e-6)
    drawn = law.gather(2, block.tokens[..., None]).squeeze(2)
    torch.testing.assert_close(block.token_probs, drawn, rtol=1e-5, atol=1e-6)
    assert (block.token_probs > 0).all()
    torch.testing.assert_close(block.confidence_logits, drafter.confidence_logits(h, previous))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("shortlist", [None, 3])
def test_all_greedy_is_a_chain_of_argmax_without_laws(kind: str, shortlist: int | None) -> None:
    drafter = TinyDrafter(kind, seed=5)
    h, anchors = inputs(1)
    block = sample_block(drafter, h, anchors, torch.zeros(R), shortlist=shortlist)
    assert block.probs is None
    assert block.token_probs is None
    previous = torch.cat([anchors[:, None], block.tokens[:, :-1]], 1)
    logits = forced_logits(drafter, h, previous)
    if shortlist is not None:
        keep = torch.zeros_like(logits, dtype=torch.bool)
        keep.scatter_(2, drafter.base_logits(h).topk(shortlist).indices, True)
        logits = logits.masked_fill(~keep, -torch.inf)
    assert torch.equal(block.tokens, logits.argmax(-1))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("shortlist", [None, 3])
def test_mixed_batch_rows_equal_their_own_batches(kind: str, shortlist: int | None) -> None:
    drafter = TinyDrafter(kind, seed=6)
    h, anchors = inputs(2)
    temperatures = torch.tensor([0.0, 0.8, 0.0])
    uniforms = torch.rand(R, GAMMA, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mixed = sample_block(drafter, h, anchors, temperatures, shortlist=shortlist, uniforms=uniforms)
    greedy = sample_block(drafter, h[[0, 2]], anchors[[0, 2]], torch.zeros(2), shortlist=shortlist)
    sampled = sample_block(
        drafter, h[1:2], anchors[1:2], temperatures[1:2], shortlist=shortlist, uniforms=uniforms[1:2]
    )
    assert torch.equal(mixed.tokens[[0, 2]], greedy.tokens)
    assert torch.equal(mixed.tokens[1:2], sampled.tokens)
    torch.testing.assert_close(mixed.probs[1:2], sampled.probs)
    one_hot = torch.nn.functional.one_hot(greedy.tokens, V).float()
    assert torch.equal(dense(mixed.candidates, mixed.probs)[[0, 2]], one_hot)
    assert (mixed.token_probs[[0, 2]] == 1).all()


def test_slot_zero_follows_its_law_on_a_grid_of_uniforms() -> None:
    drafter = TinyDrafter("rnn", seed=7)
    h, anchors = inputs(3)
    points = 2000
    uniforms = torch.full((points, GAMMA), 0.5, dtype=torch.float64)
    uniforms[:, 0] = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    block = sample_block(
        drafter, h[:1].expand(points, -1, -1), anchors[:1].expand(points), torch.ones(points), uniforms=uniforms
    )
    counts = block.tokens[:, 0].bincount(minlength=V)
    # Inverting a law at midpoints puts each count within 1 of its expectation.
    assert ((counts - points * block.probs[0, 0].double()).abs() <= 1).all()


def test_bf16_models_get_one_fp32_law() -> None:
    drafter = TinyDrafter("vanilla", dtype=torch.bfloat16)
    h, anchors = inputs(4)
    block = sample_block(drafter, h.bfloat16(), anchors, torch.ones(R), shortlist=5)
    assert block.probs.dtype == torch.float32
    torch.testing.assert_close(block.probs.sum(-1), torch.ones(R, GAMMA), rtol=0, atol=1e-6)


def test_confidence_never_sees_its_own_or_later_tokens() -> None:
    drafter = TinyDrafter("rnn", seed=8)
    h, anchors = inputs(5)
    uniforms = torch.rand(R, GAMMA, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    first = sample_block(drafter, h, anchors, torch.ones(R), uniforms=uniforms)
    for j in range(GAMMA):
        other = uniforms.clone()
        other[:, j:] = torch.rand(R, GAMMA - j, dtype=torch.float64, generator=torch.Generator().manual_seed(j + 9))
        second = sample_block(drafter, h, anchors, torch.ones(R), uniforms=other)
        assert torch.equal(first.confidence_logits[:, : j + 1], second.confidence_logits[:, : j + 1])


def test_an_empty_shortlist_is_refused() -> None:
    h, anchors = inputs()
    with pytest.raises(ValueError, match="no candidates"):
        sample_block(TinyDrafter("none"), h, anchors, torch.ones(R), shortlist=0)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("shortlist", [None, 2])
def test_a_draft_vocabulary_is_all_that_is_proposed(kind: str, shortlist: int | None) -> None:
    proposes = [0, 2, 5]
    drafter = TinyDrafter(kind, proposes=proposes, seed=4)
    generator = torch.Generator().manual_seed(1)
    h, anchors = torch.randn(60, 3, 6, generator=generator), torch.arange(60) % 7
    temperatures = torch.tensor([0.0, 1.0]).repeat(30)
    block = sample_block(drafter, h, anchors, temperatures, shortlist=shortlist, generator=generator)
    assert set(block.tokens.unique().tolist()) <= set(proposes)
    assert block.candidates is not None
    assert block.probs is not None
    at = (block.candidates == block.tokens.unsqueeze(2)).double().argmax(2, keepdim=True)
    torch.testing.assert_close(block.probs.gather(2, at).squeeze(2), block.token_probs)
    torch.testing.assert_close(block.probs.sum(2), torch.ones(60, 3))
    greedy = sample_block(drafter, h, anchors, torch.zeros(60), shortlist=shortlist)
    assert torch.equal(greedy.tokens[::2], block.tokens[::2])
