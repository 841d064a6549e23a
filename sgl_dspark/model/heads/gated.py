"""Gated Markov head: the slot's hidden state scales each component of the latent (released code, not in the paper)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgl_dspark.model.heads.base import SequentialHead


class GatedHead(SequentialHead):
    """The latent is ``sigmoid(gate_proj([h ; w])) * w`` with w the previous token's W1 row.

    Parameters
    ----------
    vocab_size, rank, hidden_size : int
        V, r and d.
    """

    def __init__(self, vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, rank)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def step(self, prev_tokens: Tensor, h: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the gated latent [R, r] and no state."""
        return self.teacher_forced(prev_tokens, h), None

    def teacher_forced(self, prev_tokens: Tensor, h: Tensor) -> Tensor:
        """Return gated latents [..., r]; slots do not depend on one another."""
        w = self.prev_embedding(prev_tokens)
        return torch.sigmoid(self.gate_proj(torch.cat((h, w), dim=-1))) * w
