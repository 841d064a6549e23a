"""The masked training forward: every anchor of a batch at once (Sec. 3.1).

`packed_hidden` is what the trainer runs; `blocks_hidden`, over padded batches, is its plain reference.
Shape letters: B sequences, S positions, N blocks per sequence, G = gamma slots, d hidden size, r rank, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgl_dspark.model.attention import block_mask, dense_attend, visible_context, window_attend
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.packed_attention import attend_packed
from sgl_dspark.training.packing import PackedBatch


def packed_hidden(drafter: Drafter, features: Tensor, batch: PackedBatch) -> Tensor:
    """Run every block of a packed batch.

    Parameters
    ----------
    drafter : Drafter
    features : [C, m*d]
        The batch's, as the draft takes them.
    batch : PackedBatch

    Returns
    -------
    [N, G, d]
        Post-norm hidden states.
    """
    k, v = drafter.context_kv(drafter.project_context(features), batch.positions)
    return drafter.block_hidden(batch.anchor_tokens, batch.anchors, attend_packed(k, v, batch))


def blocks_hidden(
    drafter: Drafter, features: Tensor, input_ids: Tensor, anchors: Tensor, block_keep: Tensor, *, dense: bool = False
) -> Tensor:
    """Run every block of a padded batch under the training mask.

    Parameters
    ----------
    drafter : Drafter
    features : [B, S, m*d]
        Target features.
    input_ids : int64 [B, S]
    anchors, block_keep : int64, bool [B, N]
        Rows of dropped blocks are meaningless.
    dense : bool
        Attend through the explicit [N*G, S + N*G] mask, the plain reference, instead of context and own block apart.

    Returns
    -------
    [B, N, G, d]
        Post-norm hidden states.
    """
    batch, seq_len = input_ids.shape
    gamma = drafter.config.gamma
    context = drafter.project_context(features.flatten(0, 1))
    positions = torch.arange(seq_len, device=features.device).repeat(batch)
    k, v = (x.unflatten(1, (batch, seq_len)) for x in drafter.context_kv(context, positions))  # type: ignore[no-untyped-call]
    if dense:
        attend = dense_attend(k, v, block_mask(anchors, block_keep, seq_len, gamma))
    else:
        attend = window_attend(k, v, visible_context(anchors, block_keep, seq_len))
    h = drafter.block_hidden(input_ids.gather(1, anchors).flatten(), anchors.flatten(), attend)
    return h.view(*anchors.shape, gamma, -1)


def head_latents(drafter: Drafter, h: Tensor, prev_tokens: Tensor) -> Tensor | None:
    """Return teacher-forced latents [..., G, r] of hidden states [..., G, d], or None without a sequential head."""
    return None if drafter.markov_head is None else drafter.markov_head.teacher_forced(prev_tokens, h)


def draft_logits(drafter: Drafter, h: Tensor, latents: Tensor | None) -> Tensor:
    """Return draft logits [..., V]: base logits of ``h`` [..., d] plus the bias of ``latents`` [..., r]."""
    logits = drafter.base_logits(h)
    return logits if drafter.markov_head is None or latents is None else logits + drafter.markov_head.bias(latents)
