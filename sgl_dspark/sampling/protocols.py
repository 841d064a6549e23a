"""What block sampling asks of a drafter, of its sequential head, and of settings that the draft follows.

Shapes: R requests, S shortlist, V vocabulary, d hidden, r head rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class SequentialHeadLike(Protocol):
    """What block sampling needs of a sequential head (see ``sgl_dspark.model.heads``)."""

    def initial_state(self, rows: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """Give the state before slot 0, or None for a head without memory."""

    def step(self, prev_tokens: Tensor, h: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Give the latent [R, r] of one slot and the state after it, from the previous token [R] and h [R, d]."""

    def bias(self, latent: Tensor, candidates: Tensor | None) -> Tensor:
        """Give the bias of the candidates [R, S], or of the whole vocabulary [R, V] when there are none."""


class BlockDrafter(Protocol):
    """What block sampling needs of a drafter (see ``sgl_dspark.model.drafter``)."""

    @property
    def markov_head(self) -> SequentialHeadLike | None:
        """The sequential head; None drafts every slot on its own (DFlash)."""

    @property
    def vocab_size(self) -> int:
        """V."""

    def proposal_logits(self, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give logits [..., C] of hidden states [..., d], and the ids int64 [C] of the columns; None for all."""

    def confidence_logits(self, h: Tensor, prev_tokens: Tensor) -> Tensor:
        """Give fp32 confidence logits [...] from h [..., d] and the tokens before [...]."""


class SlotAdjustment(Protocol):
    """What changes a slot's logits before its token is drawn: whatever it does is part of the draft's law."""

    def adjust(self, slot: int, logits: Tensor, candidates: Tensor | None, drafts: Sequence[Tensor]) -> Tensor:
        """Give the logits [R, S or V] to draw from; ``drafts`` are the tokens [R] of the slots before.

        Each row must keep a finite logit.
        """
