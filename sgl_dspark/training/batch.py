"""Padded micro-batches of conversations with their anchors and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sgl_dspark.training.anchors import block_labels, sample_anchors
from sgl_dspark.training.data import Conversation
from sgl_dspark.training.losses import slot_weights


@dataclass(frozen=True)
class Batch:
    """B conversations, N blocks each, and the flat list of their M valid slots ordered by target row.

    Attributes
    ----------
    ids : int64 [B, S]
        Right-padded with 0.
    features : [B, S, m*d]
        Padding and each conversation's last token are zeros; no block sees them.
    anchors, block_keep : int64, bool [B, N]
    prev_tokens : int64 [B, N, gamma]
        Teacher-forced, for the sequential head.
    slots : int64 [M]
        Flat indices into [B, N, gamma] of valid slots.
    labels : int64 [M]
    slot_index : int64 [M]
        Slot number j of each valid slot.
    weights : fp32 [M]
    target_hidden : [B*S, d]
        Final-norm outputs of the target.
    target_rows : int64 [M]
        Row of ``target_hidden`` behind each slot's target law; non-decreasing.
    """

    ids: Tensor
    features: Tensor
    anchors: Tensor
    block_keep: Tensor
    prev_tokens: Tensor
    slots: Tensor
    labels: Tensor
    slot_index: Tensor
    weights: Tensor
    target_hidden: Tensor
    target_rows: Tensor


def make_batch(
    conversations: Sequence[Conversation],
    num_anchors: int,
    gamma: int,
    loss_decay: float,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Batch:
    """Pad conversations, draw anchors (Sec. 4.1) and flatten what is supervised.

    Parameters
    ----------
    conversations : sequence of Conversation
        B of them.
    num_anchors : int
        At most this many blocks per conversation.
    gamma : int
    loss_decay : float
        Of the slot weights.
    generator : torch.Generator
        Source of the anchors.
    dtype : torch.dtype
        Of features and target hidden states.
    """
    ids = pad_sequence([c.ids for c in conversations], batch_first=True)
    loss_mask = pad_sequence([c.loss_mask for c in conversations], batch_first=True)
    length = ids.shape[1]
    features, hidden = (
        torch.stack([_padded(rows.to(dtype), length) for rows in group])
        for group in ([c.features for c in conversations], [c.hidden for c in conversations])
    )
    anchors, keep = sample_anchors(loss_mask, num_anchors, generator)
    labels = block_labels(ids, loss_mask, anchors, keep, gamma)
    offsets = torch.arange(len(conversations))[:, None, None] * length
    rows = (labels.target_rows + offsets).flatten()
    slots = labels.slot_valid.flatten().nonzero().flatten()
    slots = slots[rows[slots].argsort(stable=True)]
    return Batch(
        ids=ids,
        features=features,
        anchors=anchors,
        block_keep=keep,
        prev_tokens=labels.prev_tokens,
        slots=slots,
        labels=labels.target_ids.flatten()[slots],
        slot_index=slots % gamma,
        weights=slot_weights(labels.slot_valid, loss_decay).flatten()[slots],
        target_hidden=hidden.flatten(0, 1),
        target_rows=rows[slots],
    )


def _padded(rows: Tensor, length: int) -> Tensor:
    padding = rows.new_zeros((length - rows.shape[0], rows.shape[1]))
    return torch.cat((rows, padding))
