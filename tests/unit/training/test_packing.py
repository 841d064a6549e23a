"""Packed blocks compute what the padded reference computes, by index and through flex attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl_dspark.data.cache import Conversation
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.anchors import block_labels
from sgl_dspark.training.forward import blocks_hidden, packed_hidden
from sgl_dspark.training.packed_attention import flex_attend, index_attend
from sgl_dspark.training.packing import PackedBatch, pack, seed_of
from tests.support.drafts import tiny_drafter

LENGTHS = (9, 14, 6, 11)


def conversations(drafter: Drafter, seed: int = 0) -> list[Conversation]:
    random, config = torch.Generator().manual_seed(seed), drafter.config
    return [
        Conversation(
            ids=torch.randint(config.vocab_size, (length,), generator=random),
            loss_mask=torch.arange(length) >= prompt,
            features=torch.randn(length - 1, config.num_features, generator=random),
            hidden=torch.randn(length - 1, config.hidden_size, generator=random),
        )
        # The third has too few supervised tokens for an anchor.
        for length, prompt in zip(LENGTHS, (3, 5, 5, 1), strict=True)
    ]


def packed(drafter: Drafter, data: list[Conversation], anchors: int = 4) -> PackedBatch:
    seeds = [seed_of("test", index) for index in range(len(data))]
    return pack(data, seeds, anchors, drafter.config.gamma, 4.0, torch.float32)


def reference(drafter: Drafter, data: list[Conversation], batch: PackedBatch) -> Tensor:
    """Run every conversation alone through the dense mask; [N, gamma, d]."""
    rows = []
    for index, conversation in enumerate(data):
        blocks = slice(*batch.block_bounds[index : index + 2])
        anchors = batch.anchors[blocks][None]
        features = torch.cat((conversation.features, torch.zeros(1, conversation.features.shape[1])))[None]
        keep = torch.ones_like(anchors, dtype=torch.bool)
        if anchors.numel():
            rows.append(blocks_hidden(drafter, features, conversation.ids[None], anchors, keep, dense=True)[0])
    return torch.cat(rows)


@pytest.mark.parametrize("kind", ["none", "rnn"])
def test_blocks_see_what_the_dense_mask_shows_them(kind: str) -> None:
    drafter = tiny_drafter(kind)
    data = conversations(drafter)
    batch = packed(drafter, data)
    assert batch.block_bounds == (0, 4, 8, 8, 12)
    found = packed_hidden(drafter, batch.features, batch)
    torch.testing.assert_close(found, reference(drafter, data, batch), atol=1e-4, rtol=1e-4)


def test_flex_attention_agrees_with_attention_by_index() -> None:
    drafter = tiny_drafter(head_dim=16)
    batch = packed(drafter, conversations(drafter))
    with torch.no_grad():
        k, v = drafter.context_kv(drafter.project_context(batch.features), batch.positions)
        by_index, flex = (
            drafter.block_hidden(batch.anchor_tokens, batch.anchors, attend(k, v, batch))
            for attend in (index_attend, flex_attend)
        )
    torch.testing.assert_close(flex, by_index, atol=1e-4, rtol=1e-4)


def test_flex_attention_computes_in_the_dtype_of_autocast() -> None:
    drafter = tiny_drafter(head_dim=16)
    batch = packed(drafter, conversations(drafter))
    seen: list[torch.dtype] = []
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        k, v = drafter.context_kv(drafter.project_context(batch.features), batch.positions)
        attend = flex_attend(k, v, batch)

        def watched(layer: int, q: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
            out = attend(layer, q, own_k, own_v)
            seen.append(out.dtype)
            return out

        drafter.block_hidden(batch.anchor_tokens, batch.anchors, watched)
    assert set(seen) == {torch.bfloat16}


def test_gradients_equal_those_of_the_dense_mask() -> None:
    drafter = tiny_drafter()
    data = conversations(drafter)
    batch = packed(drafter, data)
    direction = torch.randn(len(batch.anchors), drafter.config.gamma, drafter.config.hidden_size)
    trained = [p for n, p in drafter.named_parameters() if p.requires_grad and not n.startswith(("mark", "conf"))]
    one = torch.autograd.grad((packed_hidden(drafter, batch.features, batch) * direction).sum(), trained)
    other = torch.autograd.grad((reference(drafter, data, batch) * direction).sum(), trained)
    for mine, wanted in zip(one, other, strict=True):
        torch.testing.assert_close(mine, wanted, atol=2e-3, rtol=2e-3)


def test_labels_and_rows_are_those_of_each_conversation() -> None:
    drafter = tiny_drafter()
    data = conversations(drafter)
    batch = packed(drafter, data)
    gamma = drafter.config.gamma
    seen = 0
    for index, conversation in enumerate(data):
        blocks = slice(*batch.block_bounds[index : index + 2])
        anchors = batch.anchors[blocks][None]
        keep = torch.ones_like(anchors, dtype=torch.bool)
        wanted = block_labels(conversation.ids[None], conversation.loss_mask[None], anchors, keep, gamma)
        assert torch.equal(batch.prev_tokens[blocks], wanted.prev_tokens[0])
        inside = (batch.slots >= blocks.start * gamma) & (batch.slots < blocks.stop * gamma)
        order = batch.slots[inside] - blocks.start * gamma
        assert torch.equal(order.sort().values, wanted.slot_valid[0].flatten().nonzero().flatten())
        assert torch.equal(batch.labels[inside], wanted.target_ids[0].flatten()[order])
        hidden = batch.target_hidden[batch.target_rows[inside]]
        assert torch.equal(hidden, conversation.hidden[wanted.target_rows[0].flatten()[order]])
        seen += int(inside.sum())
    assert seen == len(batch.slots) > 0
    assert bool((batch.target_rows.diff() >= 0).all())


def test_anchors_of_a_conversation_do_not_depend_on_its_company() -> None:
    drafter = tiny_drafter()
    data = conversations(drafter)
    together = packed(drafter, data)
    alone = pack([data[1]], [seed_of("test", 1)], 4, drafter.config.gamma, 4.0, torch.float32)
    assert torch.equal(together.anchors[4:8], alone.anchors)
    assert seed_of(0, 1, 2) != seed_of(0, 2, 1)
