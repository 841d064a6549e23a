"""A random pair of head dim 64, which the fixture pair's 32 is not, for kernels that ask for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from sgl_dspark.config import DrafterConfig
from sgl_dspark.model.checkpoint import save_drafter
from sgl_dspark.model.drafter import Drafter
from tests.support.pair import TARGET

HIDDEN, HEADS, KV_HEADS, DIM, LAYERS, GAMMA = 256, 4, 2, 64, 4, 5


def make_wide_pair(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write target and draft with the fixture's vocabulary; returns their folders."""
    import transformers

    torch.manual_seed(seed)
    fixture = transformers.AutoConfig.from_pretrained(TARGET)
    config = transformers.Qwen3Config(
        vocab_size=fixture.vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        max_position_embeddings=1024,
        eos_token_id=fixture.eos_token_id,
        tie_word_embeddings=True,
    )
    target, draft = folder / "target", folder / "draft"
    transformers.Qwen3ForCausalLM(config).eval().save_pretrained(target)
    for file in TARGET.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            shutil.copy(file, target)
    drafter = Drafter(
        DrafterConfig(
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=DIM,
            vocab_size=fixture.vocab_size,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            max_position_embeddings=1024,
            gamma=GAMMA,
            mask_token_id=0,
            target_layer_ids=(0, 2),
            num_target_layers=LAYERS,
            markov_rank=16,
            markov_head_type="vanilla",
            enable_confidence_head=True,
            confidence_head_with_markov=True,
        )
    )
    save_drafter(drafter, draft, include_shared=False)
    return target, draft
