"""A plain decoder for targets of the Llama and Qwen3 families, with the taps that drafting needs.

Training and offline evaluation need three things that a serving engine hides: the raw outputs of chosen layers, the
final-norm hidden state, and many rows decoded at once on few cores. This decoder gives them in about two hundred lines
and is tested against transformers.

Shape letters: B rows, T new tokens, S cached positions, H query heads, J key/value heads, D head_dim, d hidden size,
m feature layers, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_dspark.errors import DsparkError

_FAMILIES = {"llama": False, "qwen3": True}


class TargetError(DsparkError):
    """A target folder that this decoder cannot run; the message names the field or the file."""


@dataclass(frozen=True)
class TargetConfig:
    """What of a target's ``config.json`` the decoder uses."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    raw: dict[str, Any]

    @classmethod
    def from_dir(cls, folder: Path) -> TargetConfig:
        """Read ``config.json`` and, for the end-of-turn ids, ``generation_config.json``.

        Raises
        ------
        TargetError
            If the folder has no config or the architecture is not Llama or Qwen3 with plain rotary embeddings.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise TargetError(f"{folder} holds no config.json; give the folder of a Hugging Face model.")
        raw = json.loads(path.read_text(encoding="utf-8"))
        family = raw.get("model_type")
        if family not in _FAMILIES:
            raise TargetError(f"model_type {family!r} in {path} is not supported for training; use llama or qwen3.")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise TargetError(f"rope_type {rope['rope_type']!r} in {path} is not supported for training.")
        heads = raw["num_attention_heads"]
        generation = folder / "generation_config.json"
        settings = json.loads(generation.read_text(encoding="utf-8")) if generation.is_file() else {}
        eos = settings.get("eos_token_id", raw.get("eos_token_id"))
        return cls(
            hidden_size=raw["hidden_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=raw.get("num_key_value_heads", heads),
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocab_size=raw["vocab_size"],
            rms_norm_eps=raw["rms_norm_eps"],
            rope_theta=raw.get("rope_theta") or rope["rope_theta"],
            max_position_embeddings=raw["max_position_embeddings"],
            qk_norm=_FAMILIES[family],
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
            raw=raw,
        )


@dataclass
class KeyValueCache:
    """Keys and values of B rows, each row's positions 0..lengths[row]-1 left-aligned.

    Attributes
    ----------
    k, v : [L, B, J, S, D]
        Contents beyond a row's length are never read.
    lengths : int64 [B]
        Committed positions per row.
    """

    k: Tensor
    v: Tensor
    lengths: Tensor

    @classmethod
    def empty(cls, config: TargetConfig, rows: int, positions: int, dtype: torch.dtype) -> KeyValueCache:
        """Reserve ``positions`` positions for each of ``rows`` rows."""
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, positions, config.head_dim)
        return cls(
            torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), torch.zeros(rows, dtype=torch.long)
        )


class TargetModel:
    """A frozen decoder-only target.

    Parameters
    ----------
    config : TargetConfig
        From the model's folder.
    weights : dict of str to Tensor
        Hugging Face names; all of one dtype, which is the dtype of computation (norms and softmax in fp32).
    """

    def __init__(self, config: TargetConfig, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.embed = weights["model.embed_tokens.weight"]
        self.lm_head = weights.get("lm_head.weight", self.embed)
        self.dtype = self.embed.dtype
        self._final_norm = weights["model.norm.weight"]
        self._layers = [self._layer(weights, i) for i in range(config.num_hidden_layers)]
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.arange(config.max_position_embeddings, dtype=torch.float64)[:, None] / config.rope_theta**half
        self._cos, self._sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    @classmethod
    def from_dir(cls, folder: Path | str, dtype: torch.dtype) -> TargetModel:
        """Load a Hugging Face folder with safetensors weights."""
        from safetensors.torch import load_file

        folder = Path(folder)
        config = TargetConfig.from_dir(folder)
        shards = sorted(folder.glob("*.safetensors"))
        if not shards:
            raise TargetError(f"{folder} holds no .safetensors weights.")
        weights: dict[str, Tensor] = {}
        for shard in shards:
            weights.update({name: value.to(dtype) for name, value in load_file(str(shard)).items()})
        return cls(config, weights)

    @torch.no_grad()
    def forward(
        self, ids: Tensor, cache: KeyValueCache, feature_layers: Sequence[int] = (), rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run new tokens of every row behind what the cache holds, and store their keys and values.

        ``cache.lengths`` is read, not advanced: the caller commits as many of the T positions as it keeps.

        Parameters
        ----------
        ids : int64 [B, T]
            Token t of row b sits at position ``cache.lengths[b] + t``.
        cache : KeyValueCache
            Its rows are the B rows, or those that ``rows`` selects.
        feature_layers : sequence of int
            0-based layers whose raw outputs are returned, -1 for the embedding output.
        rows : int64 [B], optional
            Rows of the cache that take part.

        Returns
        -------
        hidden : [B, T, d]
            Final-norm output.
        features : [B, T, m*d] or None
            Concatenated in the order of ``feature_layers``; None without any.
        """
        lengths = cache.lengths if rows is None else cache.lengths[rows]
        positions = lengths[:, None] + torch.arange(ids.shape[1])
        used = int(positions.max()) + 1
        visible = torch.arange(used) <= positions[:, :, None]
        cos, sin = self._cos[positions], self._sin[positions]
        stream = F.embedding(ids, self.embed)
        taps = {-1: stream} if -1 in feature_layers else {}
        for index, layer in enumerate(self._layers):
            stream = stream + self._attention(index, layer, stream, cache, rows, positions, visible, cos, sin)
            normed = self._norm(stream, layer["post_norm"])
            gate, up = F.linear(normed, layer["gate_up"]).chunk(2, -1)
            stream = stream + F.linear(F.silu(gate) * up, layer["down"])
            if index in feature_layers:
                taps[index] = stream
        features = torch.cat([taps[layer] for layer in feature_layers], -1) if len(feature_layers) else None
        return self._norm(stream, self._final_norm), features

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits [..., V] of final-norm hidden states [..., d]."""
        return F.linear(hidden, self.lm_head)

    def _attention(
        self,
        index: int,
        layer: dict[str, Tensor],
        stream: Tensor,
        cache: KeyValueCache,
        rows: Tensor | None,
        positions: Tensor,
        visible: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        config = self.config
        batch, new, _ = stream.shape
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        fused = F.linear(self._norm(stream, layer["input_norm"]), layer["qkv"]).view(batch, new, -1, dim)
        q, k, v = fused.split((heads, kv_heads, kv_heads), 2)
        if config.qk_norm:
            q, k = self._norm(q, layer["q_norm"]), self._norm(k, layer["k_norm"])
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        owner = (torch.arange(batch) if rows is None else rows)[:, None]
        cache.k[index][owner, :, positions] = k
        cache.v[index][owner, :, positions] = v
        used = visible.shape[-1]
        keys, values = cache.k[index][:, :, :used], cache.v[index][:, :, :used]
        if rows is not None:
            keys, values = keys[rows], values[rows]
        # Query heads that share a key head become extra query rows: no copy of keys per query head.
        group = heads // kv_heads
        q = q.view(batch, new, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * new, dim)
        mask = visible[:, None].repeat(1, 1, group, 1)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.view(batch, kv_heads, group, new, dim).permute(0, 3, 1, 2, 4).reshape(batch, new, heads * dim)
        return F.linear(out, layer["o_proj"])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = cos[:, :, None], sin[:, :, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    @staticmethod
    def _layer(weights: dict[str, Tensor], index: int) -> dict[str, Tensor]:
        def take(name: str) -> Tensor:
            full = f"model.layers.{index}.{name}.weight"
            if full not in weights:
                raise TargetError(f"the target's weights lack {full}.")
            return weights[full]

        attention = {part: take(f"self_attn.{part}_proj") for part in ("q", "k", "v", "o")}
        layer = {
            "input_norm": take("input_layernorm"),
            "post_norm": take("post_attention_layernorm"),
            "qkv": torch.cat([attention["q"], attention["k"], attention["v"]]),
            "o_proj": attention["o"],
            "gate_up": torch.cat([take("mlp.gate_proj"), take("mlp.up_proj")]),
            "down": take("mlp.down_proj"),
        }
        if f"model.layers.{index}.self_attn.q_norm.weight" in weights:
            layer["q_norm"], layer["k_norm"] = take("self_attn.q_norm"), take("self_attn.k_norm")
        return layer
