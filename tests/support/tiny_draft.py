"""A drafter reduced to what sampling sees of it: base logits, the real sequential and confidence heads."""

from __future__ import annotations

import torch
from torch import Tensor

from sgl_dspark.model.heads import ConfidenceHead, GatedHead, MarkovHead, RNNHead, SequentialHead

HEADS = ["none", "vanilla", "gated", "rnn"]


def make_head(kind: str, vocab_size: int, rank: int, hidden_size: int) -> SequentialHead | None:
    return {
        "none": lambda: None,
        "vanilla": lambda: MarkovHead(vocab_size, rank),
        "gated": lambda: GatedHead(vocab_size, rank, hidden_size),
        "rnn": lambda: RNNHead(vocab_size, rank, hidden_size),
    }[kind]()


class TinyDrafter:
    """Random weights of standard deviation ``scale`` in every part, so that laws are far from uniform."""

    def __init__(
        self,
        kind: str,
        *,
        vocab_size: int = 7,
        hidden_size: int = 6,
        rank: int = 3,
        seed: int = 0,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
        proposes: list[int] | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self.draft_vocab_ids = None if proposes is None else torch.tensor(proposes)
        self.markov_head = make_head(kind, vocab_size, rank, hidden_size)
        self.confidence_head = ConfidenceHead(hidden_size, rank if self.markov_head is not None else 0)
        self.lm_head = (torch.randn(vocab_size, hidden_size, generator=generator) * scale).to(dtype)
        for module in (self.markov_head, self.confidence_head):
            if module is not None:
                module.requires_grad_(False)
                for parameter in module.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
                module.to(dtype)

    def base_logits(self, h: Tensor) -> Tensor:
        return h @ self.lm_head.T

    def proposal_logits(self, h: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.draft_vocab_ids is None:
            return self.base_logits(h), None
        return h @ self.lm_head[self.draft_vocab_ids].T, self.draft_vocab_ids

    def confidence_logits(self, h: Tensor, prev_tokens: Tensor) -> Tensor:
        embedding = self.markov_head.prev_embedding(prev_tokens) if self.markov_head is not None else None
        logits: Tensor = self.confidence_head(h, embedding)
        return logits
