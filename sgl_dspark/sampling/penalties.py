"""Penalties on tokens that an answer already holds, exact at every row of a verified block.

The law at slot k of a block is that after the drafts before k, so a draft counts for the rows behind it and for no
other. Semantics are SGLang 0.5.23's, for a token that occurs c > 0 times in the answer so far:

    l' = l - frequency * c - presence
    l'' = l' * repetition if l' < 0 else l' / repetition

Tokens with c = 0 keep their logit. The prompt does not count.

Shapes: N requests, L tokens of the longest answer, G drafts, M verified rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Penalties:
    """Coefficients of N requests.

    Attributes
    ----------
    frequency, presence : fp32 [N]
        0 is off.
    repetition : fp32 [N]
        Positive; 1 is off.
    """

    frequency: Tensor
    presence: Tensor
    repetition: Tensor

    def select(self, requests: Tensor) -> Penalties:
        """Give the coefficients of some requests (int64 [n])."""
        return Penalties(self.frequency[requests], self.presence[requests], self.repetition[requests])


def penalised(logits: Tensor, counts: Tensor, penalties: Penalties) -> Tensor:
    """Give the logits of tokens that occur ``counts`` times.

    Parameters
    ----------
    logits : fp32 [N, K]
    counts : int [N, K]
        At least 0.
    penalties : Penalties
        Of the N rows.
    """
    seen = counts > 0
    lowered = logits - penalties.frequency.unsqueeze(1) * counts
    lowered -= penalties.presence.unsqueeze(1) * seen
    repetition = penalties.repetition.unsqueeze(1)
    return torch.where(seen, torch.where(lowered < 0, lowered * repetition, lowered / repetition), logits)


def repeats_before(tokens: Tensor, drafts: Tensor) -> Tensor:
    """Count how often each token was drafted before each slot.

    Parameters
    ----------
    tokens : int64 [N, K]
    drafts : int64 [N, G]

    Returns
    -------
    int32 [N, G + 1, K]
        Entry k counts among the first k drafts.
    """
    same = drafts.unsqueeze(2) == tokens.unsqueeze(1)
    counted = same.new_zeros((len(tokens), drafts.shape[1] + 1, tokens.shape[1]), dtype=torch.int32)
    torch.cumsum(same, 1, out=counted[:, 1:])
    return counted


def penalise_rows(
    logits: Tensor,
    rows: Tensor,
    owners: Tensor,
    depths: Tensor,
    answers: Tensor,
    counts: Tensor,
    drafts: Tensor,
    penalties: Penalties,
) -> None:
    """Penalise verified rows in place, each with the answer and the drafts before it.

    Only tokens of the answer and of the block are touched: L + G of V.

    Parameters
    ----------
    logits : fp32 [T, V]
    rows, owners, depths : int64 [M]
        Which rows, which of the N requests each belongs to, and how many drafts (0..G) come before it.
    answers : int64 [N, L]
        Tokens of each answer, the anchor included; padded with tokens of the same answer.
    counts : int [N, V]
        Occurrences in the answer.
    drafts : int64 [N, G]
    penalties : Penalties
        Of the N requests.
    """
    tokens = torch.cat([answers, drafts], dim=1)
    extra = repeats_before(tokens, drafts)[owners, depths]
    touched = tokens[owners]
    at = (rows.unsqueeze(1), touched)
    seen = counts.gather(1, tokens)[owners] + extra
    # A token that is listed twice gets the same value twice.
    logits[at] = penalised(logits[at], seen, penalties.select(owners))
