"""Invariants of blocks: who sees whom, training against cached inference, fused against separate projections."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_dspark.model.attention import window_attend
from sgl_dspark.model.incremental import IncrementalDrafter
from sgl_dspark.training.forward import blocks_hidden
from tests.support.drafts import HEAD_KINDS, Batch, random_batch, tiny_drafter

SEQ_LEN = 12
GAMMA = 4
CLOSE = {"atol": 2e-5, "rtol": 1e-4}
anchor_rows = st.lists(st.integers(0, SEQ_LEN - 1), min_size=3, max_size=3, unique=True).map(sorted)
seeds = st.integers(0, 2**16)


def hidden(drafter: torch.nn.Module, batch: Batch, dense: bool = False) -> torch.Tensor:
    with torch.no_grad():
        return blocks_hidden(drafter, batch.features, batch.input_ids, batch.anchors, batch.block_keep, dense=dense)


@given(anchors=anchor_rows, seed=seeds, block=st.integers(0, 2), dense=st.booleans())
@settings(max_examples=25, deadline=None)
def test_block_sees_features_before_its_anchor_only(anchors: list[int], seed: int, block: int, dense: bool) -> None:
    drafter = tiny_drafter(seed=seed)
    batch = random_batch(drafter, [anchors], SEQ_LEN, seed)
    before = hidden(drafter, batch, dense)
    batch.features[0, anchors[block] :] += 1.0
    after = hidden(drafter, batch, dense)
    torch.testing.assert_close(after[0, block], before[0, block], **CLOSE)
    for later in range(block + 1, 3):
        assert not torch.allclose(after[0, later], before[0, later], **CLOSE)
    batch.features[0, : anchors[block]] += 1.0
    if anchors[block] > 0:
        assert not torch.allclose(hidden(drafter, batch, dense)[0, block], before[0, block], **CLOSE)


@given(anchors=anchor_rows, seed=seeds, block=st.integers(0, 2), dense=st.booleans())
@settings(max_examples=25, deadline=None)
def test_blocks_do_not_see_one_another(anchors: list[int], seed: int, block: int, dense: bool) -> None:
    drafter = tiny_drafter(seed=seed)
    batch = random_batch(drafter, [anchors, anchors], SEQ_LEN, seed)
    before = hidden(drafter, batch, dense)
    token = batch.input_ids[0, anchors[block]]
    batch.input_ids[0, anchors[block]] = (token + 1) % drafter.config.vocab_size
    after = hidden(drafter, batch, dense)
    changed = torch.zeros(2, 3, dtype=torch.bool)
    changed[0, block] = True
    torch.testing.assert_close(after[~changed], before[~changed], **CLOSE)
    # Attention inside a block is bidirectional: the anchor moves every slot.
    assert all(not torch.allclose(after[0, block, j], before[0, block, j], **CLOSE) for j in range(GAMMA))


@given(seed=seeds, slot=st.integers(0, GAMMA - 1))
@settings(max_examples=20, deadline=None)
def test_every_slot_of_a_block_reaches_every_other(seed: int, slot: int) -> None:
    drafter = tiny_drafter(seed=seed)
    request = IncrementalDrafter(drafter)
    before = request.block_hidden(5)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        moved = v.clone()
        if layer == 0:
            moved[slot] += 1.0
        return request.cache.attend(layer, q, k, moved)

    after = drafter.block_hidden(torch.tensor([5]), torch.tensor([0]), attend)[0]
    assert all(not torch.allclose(after[j], before[j], **CLOSE) for j in range(GAMMA))


@given(anchors=st.lists(anchor_rows, min_size=2, max_size=2), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_windowed_attention_equals_the_dense_mask(anchors: list[list[int]], seed: int) -> None:
    drafter = tiny_drafter(seed=seed)
    batch = random_batch(drafter, anchors, SEQ_LEN, seed)
    torch.testing.assert_close(hidden(drafter, batch), hidden(drafter, batch, dense=True), **CLOSE)


@given(anchors=anchor_rows, seed=seeds, chunks=st.lists(st.integers(1, 5), max_size=6), fused=st.booleans())
@settings(max_examples=30, deadline=None)
def test_cached_path_equals_the_training_path_however_rounds_are_cut(
    anchors: list[int], seed: int, chunks: list[int], fused: bool
) -> None:
    drafter = tiny_drafter(seed=seed)
    batch = random_batch(drafter, [anchors], SEQ_LEN, seed)
    wanted = hidden(drafter, batch)[0]
    if fused:
        drafter.fuse_for_serving()
    request = IncrementalDrafter(drafter)
    cuts = iter(chunks)
    for anchor, block in zip(anchors, wanted, strict=True):
        while request.cache.length < anchor:
            end = min(anchor, request.cache.length + next(cuts, SEQ_LEN))
            request.append(batch.features[0, request.cache.length : end])
        torch.testing.assert_close(request.block_hidden(int(batch.input_ids[0, anchor])), block, **CLOSE)
        # The block's own keys and values leave no trace: the cache ends at the anchor.
        assert request.cache.length == anchor


@given(anchors=st.lists(anchor_rows, min_size=2, max_size=2), seed=seeds, kind=st.sampled_from(HEAD_KINDS))
@settings(max_examples=25, deadline=None)
def test_fused_equals_separate_projections(anchors: list[list[int]], seed: int, kind: str) -> None:
    drafter = tiny_drafter(kind, seed=seed)
    batch = random_batch(drafter, anchors, SEQ_LEN, seed)
    context = drafter.project_context(batch.features[0])
    separate = (hidden(drafter, batch), *drafter.context_kv(context, torch.arange(SEQ_LEN)))
    drafter.fuse_for_serving()
    fused = (hidden(drafter, batch), *drafter.context_kv(context, torch.arange(SEQ_LEN)))
    for found, wanted in zip(fused, separate, strict=True):
        torch.testing.assert_close(found, wanted, **CLOSE)


@given(anchors=anchor_rows, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_packed_sequences_equal_separate_ones(anchors: list[int], seed: int) -> None:
    """One context tensor holding two sequences, windows telling them apart: what a packing trainer does."""
    drafter = tiny_drafter(seed=seed)
    batch = random_batch(drafter, [anchors, anchors[::-1]], SEQ_LEN, seed)
    wanted = hidden(drafter, batch).flatten(0, 1)
    context = drafter.project_context(batch.features.flatten(0, 1))
    k, v = drafter.context_kv(context, torch.arange(SEQ_LEN).repeat(2))
    flat = batch.anchors.flatten()
    start = torch.tensor([0, SEQ_LEN]).repeat_interleave(3)
    columns = torch.arange(2 * SEQ_LEN)
    visible = (columns >= start[:, None]) & (columns < (start + flat)[:, None])
    attend = window_attend(k[:, None], v[:, None], visible[None])
    found = drafter.block_hidden(batch.input_ids.gather(1, batch.anchors).flatten(), flat, attend)
    torch.testing.assert_close(found, wanted, **CLOSE)
