"""Sequential heads by name, and the confidence head."""

from __future__ import annotations

from sgl_dspark.config import DrafterConfig
from sgl_dspark.model.heads.base import SequentialHead
from sgl_dspark.model.heads.confidence import ConfidenceHead
from sgl_dspark.model.heads.gated import GatedHead
from sgl_dspark.model.heads.markov import MarkovHead
from sgl_dspark.model.heads.rnn import RNNHead

__all__ = ["ConfidenceHead", "GatedHead", "MarkovHead", "RNNHead", "SequentialHead", "build_head"]


def build_head(config: DrafterConfig) -> SequentialHead | None:
    """Return the sequential head that ``config`` asks for, or None when its rank is 0."""
    if config.markov_head_type == "vanilla":
        return MarkovHead(config.vocab_size, config.markov_rank)
    if config.markov_head_type == "gated":
        return GatedHead(config.vocab_size, config.markov_rank, config.hidden_size)
    if config.markov_head_type == "rnn":
        return RNNHead(config.vocab_size, config.markov_rank, config.hidden_size)
    return None
