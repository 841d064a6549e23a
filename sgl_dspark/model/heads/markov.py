"""Vanilla Markov head: a low-rank bias that depends on the previous token only (Eq. 5)."""

from __future__ import annotations

from torch import Tensor

from sgl_dspark.model.heads.base import SequentialHead


class MarkovHead(SequentialHead):
    """The latent is the previous token's W1 row."""

    def step(self, prev_tokens: Tensor, h: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return W1 rows of ``prev_tokens`` [R] and no state; ``h`` is not read."""
        return self.prev_embedding(prev_tokens), None

    def teacher_forced(self, prev_tokens: Tensor, h: Tensor) -> Tensor:
        """Return W1 rows of ``prev_tokens`` [..., gamma]; ``h`` is not read."""
        return self.prev_embedding(prev_tokens)
