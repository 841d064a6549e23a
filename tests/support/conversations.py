"""Made-up conversations with target states, and draft makers for them."""

from __future__ import annotations

import torch

from sgl_dspark.config import DrafterConfig
from sgl_dspark.data.cache import Conversation
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.eagle3 import Eagle3Drafter
from sgl_dspark.training.vocabulary import Draft

VOCAB, HIDDEN, FEATURES, GAMMA = 61, 32, 64, 3


def make_draft(kind: str = "dspark", seed: int = 0) -> Draft:
    torch.manual_seed(seed)
    rank = 8 if kind == "dspark" else 0
    config = DrafterConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=VOCAB, rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=128, gamma=GAMMA,
        mask_token_id=0, target_layer_ids=(0, 2), num_target_layers=4, markov_rank=rank,
        markov_head_type="vanilla" if rank else None, enable_confidence_head=rank > 0,
        confidence_head_with_markov=rank > 0,
    )  # fmt: skip
    draft: Draft = Eagle3Drafter(config) if kind == "eagle3" else Drafter(config)
    draft.share_embeddings(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
    return draft


def make_conversations(count: int, seed: int = 0, prompt: int = 4) -> list[Conversation]:
    """Sequences that count upwards, with states that tell the position apart."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(12, 20, (1,), generator=random))
        ids = (torch.arange(length) + int(torch.randint(0, 40, (1,), generator=random))) % VOCAB
        found.append(
            Conversation(
                ids=ids,
                loss_mask=torch.arange(length) >= prompt,
                features=torch.randn(length - 1, FEATURES, generator=random),
                hidden=torch.randn(length - 1, HIDDEN, generator=random),
            )
        )
    return found
