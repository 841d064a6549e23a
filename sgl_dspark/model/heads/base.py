"""What a sequential head offers to sampling, training and the confidence head (Eq. 4-6)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SequentialHead(nn.Module, ABC):
    """Low-rank additive bias on the draft logits that depends on the tokens drafted before.

    Every head writes its bias as ``latent @ W2^T`` with a latent of ``rank`` numbers per slot, so that a sampler can
    evaluate it on a shortlist of candidates, and a trainer on packed rows.

    Parameters
    ----------
    vocab_size, rank : int
        V and r, r at least 1.
    """

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)

    def initial_state(self, rows: int, device: torch.device | str, dtype: torch.dtype) -> Tensor | None:
        """Return the state before slot 0, [rows, r], or None for a head without memory."""
        return None

    @abstractmethod
    def step(self, prev_tokens: Tensor, h: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Advance one slot.

        Parameters
        ----------
        prev_tokens : int64 [R]
            The token before this slot: the anchor for slot 0.
        h : [R, d]
            Post-norm hidden state of this slot.
        state : [R, r] or None
            From :meth:`initial_state` or the previous step.

        Returns
        -------
        latent : [R, r]
            What W2 multiplies.
        state : [R, r] or None
            For the next slot.
        """

    @abstractmethod
    def teacher_forced(self, prev_tokens: Tensor, h: Tensor) -> Tensor:
        """Return the latents of whole blocks whose previous tokens are known.

        Parameters
        ----------
        prev_tokens : int64 [..., gamma]
            Anchor first, then the labels of slots 0..gamma-2.
        h : [..., gamma, d]

        Returns
        -------
        [..., gamma, r]
            Equal to what :meth:`step` gives slot after slot on the same tokens.
        """

    def prev_embedding(self, prev_tokens: Tensor) -> Tensor:
        """Return W1 rows of ``prev_tokens`` int64 [...] as [..., r]; shared with the confidence head."""
        return F.embedding(prev_tokens, self.markov_w1.weight)

    def bias(self, latent: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Evaluate the bias on the whole vocabulary, or on candidates only.

        Parameters
        ----------
        latent : [..., r]
        candidates : int64 [..., S], optional
            Token ids per row.

        Returns
        -------
        [..., V] or [..., S]
        """
        if candidates is None:
            return F.linear(latent, self.markov_w2.weight)
        rows = F.embedding(candidates, self.markov_w2.weight)
        return torch.matmul(rows, latent.unsqueeze(-1)).squeeze(-1)
