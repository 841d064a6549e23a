"""Tiny real drafters, far enough from zero that every weight matters, and random batches for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.config import DrafterConfig
from sgl_dspark.model.drafter import Drafter

KINDS = ("none", "vanilla", "gated", "rnn")
HEAD_KINDS = KINDS[1:]


def tiny_config(kind: str = "vanilla", **changes: Any) -> DrafterConfig:
    config = DrafterConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        vocab_size=40,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        max_position_embeddings=64,
        gamma=4,
        mask_token_id=3,
        target_layer_ids=(-1, 1, 2),
        num_target_layers=5,
        markov_rank=0 if kind == "none" else 5,
        markov_head_type=None if kind == "none" else kind,
        enable_confidence_head=True,
        confidence_head_with_markov=kind != "none",
    )
    return replace(config, **changes)


def tiny_drafter(
    kind: str = "vanilla", *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> Drafter:
    drafter = Drafter(tiny_config(kind, **changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + (parameter.dim() == 1))
    return drafter.to(dtype)


@dataclass
class Batch:
    """Random inputs of the training forward: features [B,S,m*d], ids and loss mask [B,S], two or more anchors."""

    features: Tensor
    input_ids: Tensor
    loss_mask: Tensor
    anchors: Tensor
    block_keep: Tensor


def random_batch(drafter: Drafter, anchors: list[list[int]], seq_len: int, seed: int = 0) -> Batch:
    config, generator = drafter.config, torch.Generator().manual_seed(seed)
    batch = len(anchors)
    return Batch(
        features=torch.randn(batch, seq_len, config.num_features, generator=generator),
        input_ids=torch.randint(config.vocab_size, (batch, seq_len), generator=generator),
        loss_mask=torch.ones(batch, seq_len),
        anchors=torch.tensor(anchors),
        block_keep=torch.ones(batch, len(anchors[0]), dtype=torch.bool),
    )
