"""Confidence head: probability that a slot is accepted given that its prefix was (Eq. 7-8)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConfidenceHead(nn.Module):
    """A linear read-out of the slot's hidden state and, optionally, the previous token's Markov embedding.

    It never sees the token drafted at its own slot: verify lengths may therefore depend on it without bias.
    Deviation from Eq. 7, as in the released code: there is a bias term.

    Parameters
    ----------
    hidden_size : int
    rank : int
        Width of the Markov embedding, 0 when it is not read.
    """

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.proj = nn.Linear(hidden_size + rank, 1)

    def forward(self, h: Tensor, prev_embedding: Tensor | None) -> Tensor:
        """Return fp32 logits [...] from ``h`` [..., d] and the embedding [..., r] (ignored when rank is 0)."""
        features = h if prev_embedding is None or self.rank == 0 else torch.cat((h, prev_embedding), dim=-1)
        logits: Tensor = self.proj(features)
        return logits.squeeze(-1).float()
