"""Anchor-bounded packing: a fixed number of anchors per sequence, blocks laid densely one after another (Sec. 5.1).

Nothing is padded: context rows of all conversations stand one behind the other, and so do the blocks, each of which
sees the window of its own conversation before its anchor. Shape letters: B conversations, C context rows, N blocks,
G = gamma slots, M valid slots, m*d features, d hidden size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.data.cache import Conversation
from sgl_dspark.training.anchors import block_labels, sample_anchors
from sgl_dspark.training.losses import slot_weights


@dataclass(frozen=True)
class PackedBatch:
    """Conversations with their blocks and labels, ready for one forward.

    Attributes
    ----------
    features : [C, m*d]
        Of every token but each conversation's last.
    positions : int64 [C]
        Of the same tokens in their conversations.
    next_tokens : int64 [C]
        The token behind each of them.
    context_bounds : tuple of int, B + 1
        Conversation b owns context rows ``context_bounds[b]:context_bounds[b + 1]``.
    anchors, anchor_tokens : int64 [N]
        Position in its conversation, and token.
    block_bounds : tuple of int, B + 1
        The same for blocks.
    prev_tokens : int64 [N, G]
        Teacher-forced, for the sequential head; the anchor first.
    slots : int64 [M]
        Flat indices into [N, G] of valid slots, ordered by target row.
    labels : int64 [M]
    weights : fp32 [M]
        Loss weights of the slots.
    target_hidden : [C, d]
        Final-norm outputs of the target.
    target_rows : int64 [M]
        Row of ``target_hidden`` behind each slot's target law; non-decreasing.
    """

    features: Tensor
    positions: Tensor
    next_tokens: Tensor
    context_bounds: tuple[int, ...]
    anchors: Tensor
    anchor_tokens: Tensor
    block_bounds: tuple[int, ...]
    prev_tokens: Tensor
    slots: Tensor
    labels: Tensor
    weights: Tensor
    target_hidden: Tensor
    target_rows: Tensor

    @property
    def gamma(self) -> int:
        """Slots per block."""
        return int(self.prev_tokens.shape[1])

    def to(self, device: torch.device) -> PackedBatch:
        """Move every tensor."""
        moved: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                moved[item.name] = value.to(device)
        return replace(self, **moved)


def seed_of(*parts: object) -> int:
    """Return a 63-bit seed that depends on all parts: the same for any number of ranks and after any resumption."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def pack(
    conversations: Sequence[Conversation],
    seeds: Sequence[int],
    num_anchors: int,
    gamma: int,
    decay: float,
    dtype: torch.dtype,
) -> PackedBatch:
    """Draw anchors and lay conversations and blocks out.

    Parameters
    ----------
    conversations : sequence of Conversation
        B of them.
    seeds : sequence of int
        B; each conversation's anchors come from its own, so that they do not depend on its company.
    num_anchors : int
        At most so many blocks per conversation.
    gamma : int
    decay : float
        Of the slot weights, in slots.
    dtype : torch.dtype
        Of features and target hidden states.
    """
    parts = [_blocks(c, seed, num_anchors, gamma) for c, seed in zip(conversations, seeds, strict=True)]
    context_bounds = _bounds([len(c.hidden) for c in conversations])
    block_bounds = _bounds([len(part.anchors) for part in parts])
    rows = torch.cat([part.rows + start for part, start in zip(parts, context_bounds, strict=False)])
    valid = torch.cat([part.valid for part in parts])
    labels = torch.cat([part.labels for part in parts])
    slots = valid.flatten().nonzero().flatten()
    slots = slots[rows.flatten()[slots].argsort(stable=True)]
    return PackedBatch(
        features=torch.cat([c.features.to(dtype) for c in conversations]),
        positions=torch.cat([torch.arange(len(c.hidden)) for c in conversations]),
        next_tokens=torch.cat([c.ids[1:] for c in conversations]),
        context_bounds=context_bounds,
        anchors=torch.cat([part.anchors for part in parts]),
        anchor_tokens=torch.cat([part.prev[:, 0] for part in parts]),
        block_bounds=block_bounds,
        prev_tokens=torch.cat([part.prev for part in parts]),
        slots=slots,
        labels=labels.flatten()[slots],
        weights=slot_weights(valid, decay).flatten()[slots],
        target_hidden=torch.cat([c.hidden.to(dtype) for c in conversations]),
        target_rows=rows.flatten()[slots],
    )


@dataclass(frozen=True)
class _Blocks:
    """Kept blocks of one conversation: anchors [n], and [n, G] of previous tokens, labels, target rows, validity."""

    anchors: Tensor
    prev: Tensor
    labels: Tensor
    rows: Tensor
    valid: Tensor


def _blocks(conversation: Conversation, seed: int, num_anchors: int, gamma: int) -> _Blocks:
    mask, ids = conversation.loss_mask[None], conversation.ids[None]
    anchors, keep = sample_anchors(mask, num_anchors, torch.Generator().manual_seed(seed))
    found = block_labels(ids, mask, anchors, keep, gamma)
    kept = keep[0]
    return _Blocks(
        anchors[0, kept],
        found.prev_tokens[0, kept],
        found.target_ids[0, kept],
        found.target_rows[0, kept],
        found.slot_valid[0, kept],
    )


def _bounds(counts: Sequence[int]) -> tuple[int, ...]:
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return tuple(bounds)
