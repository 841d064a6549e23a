"""Where training blocks start and what their slots are asked to predict (Sec. 3.1, 4.1).

Shape letters: B sequences, S positions, N blocks per sequence, G = gamma slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockLabels:
    """What block slots are supervised with; every tensor is [B, N, G].

    Attributes
    ----------
    target_ids : int64
        Token at anchor + j + 1, the label of slot j. Past the end of the sequence: its last token, never valid.
    prev_tokens : int64
        Teacher-forced previous token: the anchor, then the labels of slots 0..G-2.
    target_rows : int64
        Position anchor + j, whose final target hidden state predicts slot j; S - 2 for labels past the end.
    slot_valid : bool
        A contiguous prefix of each block: kept, inside the sequence and supervised without a gap.
    """

    target_ids: Tensor
    prev_tokens: Tensor
    target_rows: Tensor
    slot_valid: Tensor


def candidate_anchors(loss_mask: Tensor) -> Tensor:
    """Return bool [B, S]: positions that are supervised and followed by a supervised position.

    Parameters
    ----------
    loss_mask : [B, S], any dtype
        Non-zero = supervised.
    """
    supervised = loss_mask != 0
    followed = torch.zeros_like(supervised)
    followed[:, :-1] = supervised[:, 1:]
    return supervised & followed


def sample_anchors(
    loss_mask: Tensor, num_anchors: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw anchors uniformly without replacement in every sequence (Sec. 4.1).

    Parameters
    ----------
    loss_mask : [B, S], any dtype
        Non-zero = supervised.
    num_anchors : int
        N. Sequences with fewer candidates keep them all and are padded.
    generator : torch.Generator, optional
        On the device of ``loss_mask``.

    Returns
    -------
    anchors : int64 [B, N]
        Kept ones first, ascending; padding is 0.
    block_keep : bool [B, N]
        False for padding.
    """
    batch, seq_len = loss_mask.shape
    candidates = candidate_anchors(loss_mask)
    # fp64 keys: fp32 ones tie often enough in long sequences to favour early positions.
    keys = torch.rand((batch, seq_len), generator=generator, device=loss_mask.device, dtype=torch.float64)
    drawn = keys.masked_fill(~candidates, -1.0).topk(min(num_anchors, seq_len), dim=1)
    positions = drawn.indices.masked_fill(drawn.values < 0, seq_len).sort(dim=1).values
    anchors = positions.new_full((batch, num_anchors), seq_len)
    anchors[:, : positions.shape[1]] = positions
    block_keep = anchors < seq_len
    return anchors.masked_fill(~block_keep, 0), block_keep


def block_labels(input_ids: Tensor, loss_mask: Tensor, anchors: Tensor, block_keep: Tensor, gamma: int) -> BlockLabels:
    """Derive labels, teacher-forced previous tokens, target rows and validity of every slot.

    Parameters
    ----------
    input_ids : int64 [B, S]
    loss_mask : [B, S], any dtype
        Non-zero = supervised.
    anchors, block_keep : int64, bool [B, N]
        From :func:`sample_anchors`.
    gamma : int
        G.
    """
    batch, seq_len = input_ids.shape
    labelled = anchors[..., None] + torch.arange(1, gamma + 1, device=anchors.device)
    inside = labelled < seq_len
    # Slots past the end repeat the last label and its row, as the released code does.
    labelled = labelled.clamp(max=seq_len - 1)
    flat = labelled.view(batch, -1)
    target_ids = input_ids.gather(1, flat).view(labelled.shape)
    supervised = (loss_mask != 0).gather(1, flat).view(labelled.shape)
    valid = (inside & supervised & block_keep[..., None]).long().cumprod(-1).bool()
    prev_tokens = torch.cat((input_ids.gather(1, anchors)[..., None], target_ids[..., :-1]), dim=-1)
    return BlockLabels(target_ids, prev_tokens, labelled - 1, valid)
