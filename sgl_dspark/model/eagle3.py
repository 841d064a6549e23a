"""An autoregressive one-layer draft in the manner of Eagle3: the baseline that a block draft is compared with.

Its layer reads the embedding of a token beside the feature of the position before it. The first step of a chain takes
the target's features, projected; every further one takes the draft's own hidden state for the token just drafted
(training-time test does the same). Only for training and offline evaluation: it is not served. Shape letters: n rows,
R chains, S context rows, H query heads, J key/value heads, D head dim, d hidden size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import CheckpointError
from sgl_dspark.model.attention import RotaryTable, rotate
from sgl_dspark.model.backbone import MLP, RMSNorm
from sgl_dspark.model.checkpoint import CONFIG_FILE, SHARED_TENSORS, WEIGHTS_FILE, save_weights
from sgl_dspark.model.drafter import INIT_STD

BASELINE = "eagle3"

ChainAttend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``attend(q [R,H,D], k [R,J,D], v [R,J,D]) -> [R,H,D]``: the callee owns what each chain has seen so far."""


class Eagle3Drafter(nn.Module):
    """One decoder layer over (token embedding, feature) pairs.

    Parameters
    ----------
    config : DrafterConfig
        Of one layer, without heads; ``gamma`` is the length of a chain, ``mask_token_id`` is not used.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        size, dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.fc = nn.Linear(config.num_features, size, bias=False)
        self.embed_norm, self.feature_norm = RMSNorm(size, eps), RMSNorm(size, eps)
        self.q_proj = nn.Linear(2 * size, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * size, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * size, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, size, bias=False)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = MLP(config)
        self.norm = RMSNorm(size, eps)
        self.rotary = RotaryTable(dim, config.rope_theta, config.max_position_embeddings + config.gamma)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every matrix from N(0, 0.02), unit norms; embedding and head are frozen, as the block draft's."""
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=INIT_STD)
        self.embed_tokens.weight.requires_grad_(False)
        self.lm_head.weight.requires_grad_(False)

    def share_embeddings(self, embed_weight: Tensor, lm_head_weight: Tensor) -> None:
        """Use the target's embedding and head [V, d] without a copy."""
        self.embed_tokens.weight = nn.Parameter(embed_weight.detach(), requires_grad=False)
        self.lm_head.weight = nn.Parameter(lm_head_weight.detach(), requires_grad=False)

    def project_features(self, features: Tensor) -> Tensor:
        """Map target features [n, m*d] to what a chain's first step reads, [n, d]."""
        projected: Tensor = self.fc(features)
        return projected

    def context_kv(self, stream: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [n, J, D] of (token, feature) rows.

        Parameters
        ----------
        stream : [n, d]
            Projected features of the positions before the tokens.
        tokens : int64 [n]
        positions : int64 [n]
            Of the features; the token sits one further.
        """
        mixed = self._mixed(stream, tokens)
        cos, signed_sin = self.rotary.lookup(positions, mixed.dtype)
        shape = (len(tokens), self.config.num_key_value_heads, self.config.head_dim)
        return rotate(self.k_proj(mixed).view(shape), cos, signed_sin), self.v_proj(mixed).view(shape)

    def step(self, stream: Tensor, tokens: Tensor, positions: Tensor, attend: ChainAttend) -> Tensor:
        """Advance every chain by one token.

        Parameters
        ----------
        stream : [R, d]
            Projected features, or the hidden state that the last step returned.
        tokens : int64 [R]
        positions : int64 [R]
        attend : ChainAttend
            Receives this step's key and value too.

        Returns
        -------
        [R, d]
            Before the final norm: what the next step reads. ``norm`` of it gives what the head reads.
        """
        mixed = self._mixed(stream, tokens)
        cos, signed_sin = self.rotary.lookup(positions, mixed.dtype)
        rows, dim = len(tokens), self.config.head_dim
        q = rotate(self.q_proj(mixed).view(rows, -1, dim), cos, signed_sin)
        k = rotate(self.k_proj(mixed).view(rows, -1, dim), cos, signed_sin)
        out = attend(q, k, self.v_proj(mixed).view(rows, -1, dim)).reshape(rows, -1)
        stream = stream + self.o_proj(out)
        advanced: Tensor = stream + self.mlp(self.post_attention_layernorm(stream))
        return advanced

    def _mixed(self, stream: Tensor, tokens: Tensor) -> Tensor:
        embedded = F.embedding(tokens, self.embed_tokens.weight)
        return torch.cat((self.embed_norm(embedded), self.feature_norm(stream)), -1)


def save_eagle3(drafter: Eagle3Drafter, folder: Path) -> None:
    """Write config and weights, without embedding and head."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t.detach().cpu().clone() for n, t in drafter.state_dict().items() if n not in SHARED_TENSORS}
    save_weights(state, folder / WEIGHTS_FILE)
    raw = drafter.config.to_dict() | {"baseline": BASELINE}
    (folder / CONFIG_FILE).write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def is_eagle3(folder: Path) -> bool:
    """Whether a folder holds what `save_eagle3` wrote."""
    try:
        return bool(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("baseline") == BASELINE)
    except (OSError, ValueError):
        # Whoever loads the folder next says what is wrong with it.
        return False


def load_eagle3(folder: Path, *, dtype: torch.dtype, embed: Tensor, lm_head: Tensor) -> Eagle3Drafter:
    """Load what `save_eagle3` wrote, beside its target; raises `CheckpointError` for anything else."""
    config = DrafterConfig.from_dir(folder)
    drafter = Eagle3Drafter(replace(config, num_hidden_layers=1))
    try:
        missing, unknown = drafter.load_state_dict(load_file(folder / WEIGHTS_FILE), strict=False)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"cannot load the baseline in {folder}: {error}; train it again.") from error
    if unknown or set(missing) != set(SHARED_TENSORS):
        raise CheckpointError(f"the weights in {folder} are not those of an {BASELINE} baseline; train it again.")
    drafter.to(dtype=dtype, device=embed.device)
    drafter.share_embeddings(embed, lm_head)
    return drafter.eval()
