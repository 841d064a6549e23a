"""Invariants of anchor sampling, labels and losses."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.anchors import block_labels, sample_anchors
from sgl_dspark.training.forward import blocks_hidden, draft_logits, head_latents
from sgl_dspark.training.losses import LossSums, slot_losses, slot_weights, weighted_sums
from tests.support.drafts import HEAD_KINDS, random_batch, tiny_drafter

masks = st.lists(st.lists(st.integers(0, 1), min_size=9, max_size=9), min_size=1, max_size=3)
seeds = st.integers(0, 2**16)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(mask=masks, num_anchors=st.integers(1, 12), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_anchors_are_distinct_sorted_candidates_and_as_many_as_fit(
    mask: list[list[int]], num_anchors: int, seed: int
) -> None:
    anchors, keep = sample_anchors(torch.tensor(mask), num_anchors, generator(seed))
    assert anchors.shape == keep.shape == (len(mask), num_anchors)
    for row, chosen, kept in zip(mask, anchors.tolist(), keep.tolist(), strict=True):
        candidates = [i for i in range(8) if row[i] and row[i + 1]]
        count = min(num_anchors, len(candidates))
        assert kept == [True] * count + [False] * (num_anchors - count)
        assert chosen[:count] == sorted(set(chosen[:count]))
        assert set(chosen[:count]) <= set(candidates)
        assert chosen[count:] == [0] * (num_anchors - count)


def test_anchors_are_uniform() -> None:
    anchors, _ = sample_anchors(torch.ones(6000, 9), 2, generator(1))
    counts = torch.bincount(anchors.flatten(), minlength=8).double()
    expected = 6000 * 2 / 8
    # Each position is kept in 1/4 of the rows; the statistic has 7 degrees of freedom, 24.3 is its 0.999 quantile
    # for independent draws, and drawing without replacement only lowers it.
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


@given(mask=masks, gamma=st.integers(1, 12), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_slots_are_a_supervised_prefix_with_the_next_tokens(mask: list[list[int]], gamma: int, seed: int) -> None:
    loss_mask, ids = torch.tensor(mask), torch.randint(50, (len(mask), 9), generator=generator(seed))
    anchors, keep = sample_anchors(loss_mask, 4, generator(seed))
    labels = block_labels(ids, loss_mask, anchors, keep, gamma)
    for b in range(len(mask)):
        for n in range(4):
            anchor, alive, prev = int(anchors[b, n]), bool(keep[b, n]), int(ids[b, anchors[b, n]])
            for j in range(gamma):
                position = anchor + j + 1
                alive = alive and position < 9 and bool(mask[b][position])
                assert bool(labels.slot_valid[b, n, j]) == alive
                assert int(labels.prev_tokens[b, n, j]) == prev
                assert int(labels.target_rows[b, n, j]) == min(position, 8) - 1
                prev = int(labels.target_ids[b, n, j])
                assert prev == int(ids[b, min(position, 8)])


@given(kind=st.sampled_from(HEAD_KINDS), seed=seeds)
@settings(max_examples=10, deadline=None)
def test_nothing_supervised_gives_zero_and_finite_gradients(kind: str, seed: int) -> None:
    drafter = tiny_drafter(kind, seed=seed)
    batch = random_batch(drafter, [[0, 0]], 9, seed)
    alternating = torch.arange(9)[None] % 2
    batch.anchors, batch.block_keep = sample_anchors(alternating, 2, generator(seed))
    assert not batch.block_keep.any()
    sums = batch_sums(drafter, batch.features, batch.input_ids, alternating, batch.anchors, batch.block_keep)
    loss = sums.total()
    assert loss.item() == 0.0
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in drafter.parameters())


def batch_sums(
    drafter: Drafter, features: Tensor, ids: Tensor, loss_mask: Tensor, anchors: Tensor, keep: Tensor
) -> LossSums:
    labels = block_labels(ids, loss_mask, anchors, keep, drafter.config.gamma)
    h = blocks_hidden(drafter, features, ids, anchors, keep)
    logits = draft_logits(drafter, h, head_latents(drafter, h, labels.prev_tokens)).flatten(0, 2)
    # Any fixed stand-in for the target will do: its logits are a function of the position's features.
    rows = features[..., : drafter.config.hidden_size] * 0.3
    sequences = torch.arange(len(ids))[:, None, None]
    target = drafter.base_logits(rows)[sequences, labels.target_rows].flatten(0, 2)
    confidence = drafter.confidence_logits(h, labels.prev_tokens).flatten()
    slots = slot_losses(logits, target, labels.target_ids.flatten(), confidence)
    return weighted_sums(slots, slot_weights(labels.slot_valid).flatten())


@given(seed=seeds, cut=st.integers(1, 3), kind=st.sampled_from(HEAD_KINDS))
@settings(max_examples=20, deadline=None)
def test_splitting_a_batch_over_ranks_leaves_the_loss_unchanged(seed: int, cut: int, kind: str) -> None:
    drafter = tiny_drafter(kind, seed=seed)
    batch = random_batch(drafter, [[0, 0]] * 4, 9, seed)
    loss_mask = torch.randint(2, (4, 9), generator=generator(seed)) | torch.tensor([1, 1] + [0] * 7)
    anchors, keep = sample_anchors(loss_mask, 3, generator(seed))

    def sums(rows: slice) -> LossSums:
        return batch_sums(
            drafter, batch.features[rows], batch.input_ids[rows], loss_mask[rows], anchors[rows], keep[rows]
        )

    whole, ranks = sums(slice(0, 4)), [sums(slice(0, cut)), sums(slice(cut, 4))]
    denominator = ranks[0].weight + ranks[1].weight
    together = sum(rank.total(denominator=denominator) for rank in ranks)
    torch.testing.assert_close(together, whole.total())


laws = st.lists(st.floats(-8, 8, width=32), min_size=6, max_size=6)


@given(draft=laws, target=laws, label=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_acceptance_is_the_overlap_of_the_laws(draft: list[float], target: list[float], label: int) -> None:
    slots = slot_losses(torch.tensor([draft]), torch.tensor([target]), torch.tensor([label]), None)
    overlap = torch.minimum(torch.tensor(draft).softmax(-1), torch.tensor(target).softmax(-1)).sum()
    torch.testing.assert_close(slots.accept[0], overlap, atol=1e-6, rtol=1e-6)
    assert 0 <= slots.tv.item() <= 2 + 1e-6
    same = slot_losses(torch.tensor([draft]), torch.tensor([draft]), torch.tensor([label]), None)
    torch.testing.assert_close((same.tv[0], same.accept[0]), (torch.tensor(0.0), torch.tensor(1.0)), atol=1e-6, rtol=0)


@given(first=st.integers(0, 5), second=st.integers(0, 5), logit=st.floats(-3, 3, width=32))
@settings(max_examples=30, deadline=None)
def test_disjoint_laws_are_never_accepted(first: int, second: int, logit: float) -> None:
    sure = torch.full((6, 6), -1e9).fill_diagonal_(0.0)
    slots = slot_losses(sure[[first]], sure[[second]], torch.tensor([first]), torch.tensor([logit]))
    assert slots.tv.item() == (0.0 if first == second else 2.0)
    assert slots.accept.item() == float(first == second)
    assert slots.confidence.isfinite().all()


@given(kind=st.sampled_from(HEAD_KINDS), seed=seeds)
@settings(max_examples=9, deadline=None)
def test_every_trainable_parameter_gets_a_gradient_and_frozen_ones_do_not_move(kind: str, seed: int) -> None:
    drafter = tiny_drafter(kind, seed=seed)
    frozen = {name: p.clone() for name, p in drafter.named_parameters() if not p.requires_grad}
    assert frozen.keys() == {"embed_tokens.weight", "lm_head.weight"}
    batch = random_batch(drafter, [[1, 4]], 9, seed)
    optimizer = torch.optim.SGD((p for p in drafter.parameters() if p.requires_grad), lr=0.1)
    sums = batch_sums(drafter, batch.features, batch.input_ids, batch.loss_mask, batch.anchors, batch.block_keep)
    sums.total().backward()
    for name, parameter in drafter.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (name not in frozen), name
    optimizer.step()
    for name, before in frozen.items():
        assert torch.equal(drafter.get_parameter(name), before)
