"""A tiny random Llama or Qwen3 target on disk, as transformers writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCAB, HIDDEN, LAYERS, EOS = 64, 32, 4, 2


def write_tiny_target(folder: Path, family: str = "qwen3", seed: int = 0) -> Any:
    """Save a random fp32 target and return the transformers model."""
    import transformers

    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[family](**options)
    model = {"llama": transformers.LlamaForCausalLM, "qwen3": transformers.Qwen3ForCausalLM}[family](config)
    model.eval().save_pretrained(folder)
    return model
