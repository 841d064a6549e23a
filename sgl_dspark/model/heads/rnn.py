"""Recurrent head: a gated state carries every token drafted before (Eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgl_dspark.model.heads.base import SequentialHead


class RNNHead(SequentialHead):
    """One joint projection of ``[state ; w ; h]`` gives gate, candidate and output, in that row order.

    The latent is ``tanh(output)`` of the *old* state's projection; the new state is used from the next slot on.

    Parameters
    ----------
    vocab_size, rank, hidden_size : int
        V, r and d.
    """

    def __init__(self, vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, rank)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def initial_state(self, rows: int, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Return zeros [rows, r]."""
        return torch.zeros((rows, self.rank), device=device, dtype=dtype)

    def step(self, prev_tokens: Tensor, h: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the latent [..., r] and the next state [..., r]; None stands for the zero state."""
        w = self.prev_embedding(prev_tokens)
        state = torch.zeros_like(w) if state is None else state
        gate, candidate, output = self.joint_proj(torch.cat((state, w, h), dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1 - gate) * torch.tanh(candidate)

    def teacher_forced(self, prev_tokens: Tensor, h: Tensor) -> Tensor:
        """Unroll over the slot axis; see the base class for shapes."""
        state: Tensor | None = None
        latents = []
        for slot in range(prev_tokens.shape[-1]):
            latent, state = self.step(prev_tokens[..., slot], h[..., slot, :], state)
            latents.append(latent)
        return torch.stack(latents, dim=-2)
