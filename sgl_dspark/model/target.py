"""A plain decoder for targets of the Llama and Qwen3 families, with the taps that drafting needs.

Training and offline evaluation need three things that a serving engine hides: the raw outputs of chosen layers, the
final-norm hidden state, and many rows decoded at once on few cores. This decoder gives them in about two hundred lines
and is tested against transformers.

Shape letters: B rows, T new tokens, S cached positions, H query heads, J key/value heads, D head_dim, d hidden size,
m feature layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sgl_dspark.model.packed import Linear, frozen_linear
from sgl_dspark.model.target_config import TargetConfig, TargetError


@dataclass
class KeyValueCache:
    """Keys and values of B rows, each row's positions 0..lengths[row]-1 left-aligned.

    Attributes
    ----------
    k, v : [L, B, S, J, D]
        Contents beyond a row's length are never read.
    lengths : int64 [B]
        Committed positions per row.
    """

    k: Tensor
    v: Tensor
    lengths: Tensor

    @classmethod
    def empty(
        cls,
        config: TargetConfig,
        rows: int,
        positions: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> KeyValueCache:
        """Reserve ``positions`` positions for each of ``rows`` rows."""
        shape = (config.num_hidden_layers, rows, positions, config.num_key_value_heads, config.head_dim)
        k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        return cls(k, v, torch.zeros(rows, dtype=torch.long, device=device))


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``attend(q [B, T, H, D], k, v [B_all, S, J, D]) -> [B, T, H, D]``: causal attention of one layer over the cache."""

PlanAttention = Callable[[Tensor, int, Tensor | None], Attend]
"""``plan(lengths [B], T, rows [B] or None) -> Attend``: called once a forward, for all its layers."""


def plan_torch_attention(lengths: Tensor, new: int, rows: Tensor | None) -> Attend:
    """Attend through torch's SDPA with an explicit mask: runs everywhere.

    Parameters
    ----------
    lengths : int64 [B]
        Positions that each row's cache holds before the new tokens.
    new : int
        T, new tokens per row; their keys and values are in the cache when attention runs.
    rows : int64 [B] or None
        Rows of the cache that take part.
    """
    positions = lengths[:, None] + torch.arange(new, device=lengths.device)
    # Sync: the longest row sets how much of the cache is read.
    used = int(positions.max()) + 1
    visible = torch.arange(used, device=lengths.device) <= positions[:, :, None]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, _, heads, dim = q.shape
        kv_heads = k.shape[2]
        keys, values = (x[:, :used] if rows is None else x[rows, :used] for x in (k, v))
        # Query heads that share a key head become extra query rows: no copy of keys per query head.
        group = heads // kv_heads
        queries = q.view(batch, new, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
        out = F.scaled_dot_product_attention(
            queries.reshape(batch, kv_heads, group * new, dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=visible[:, None].repeat(1, 1, group, 1),
        )
        return out.view(batch, kv_heads, group, new, dim).permute(0, 3, 1, 2, 4).reshape(q.shape)

    return attend


@dataclass(frozen=True)
class _Layer:
    """Weights of one decoder layer, projections that share an input joined."""

    input_norm: Tensor
    post_norm: Tensor
    qkv: Linear
    o_proj: Linear
    gate_up: Linear
    down: Linear
    qk_norms: tuple[Tensor, Tensor] | None


class TargetModel:
    """A frozen decoder-only target.

    Parameters
    ----------
    config : TargetConfig
        From the model's folder.
    weights : dict of str to Tensor
        Hugging Face names; all of one dtype and device, which are those of computation (norms and softmax in fp32).
    plan_attention : PlanAttention
        How attention is computed.
    """

    def __init__(
        self, config: TargetConfig, weights: dict[str, Tensor], plan_attention: PlanAttention = plan_torch_attention
    ) -> None:
        self.config, self.plan_attention = config, plan_attention
        self.embed = weights["model.embed_tokens.weight"]
        self.lm_head = weights.get("lm_head.weight", self.embed)
        self.dtype, self.device = self.embed.dtype, self.embed.device
        self._final_norm = weights["model.norm.weight"]
        self._layers = [_build_layer(weights, i) for i in range(config.num_hidden_layers)]
        self._head = frozen_linear(self.lm_head)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.arange(config.max_position_embeddings, dtype=torch.float64)[:, None] / config.rope_theta**half
        self._cos, self._sin = (table.to(self.device, self.dtype) for table in (angles.cos(), angles.sin()))

    @classmethod
    def from_dir(cls, folder: Path | str, dtype: torch.dtype, device: torch.device | str = "cpu") -> TargetModel:
        """Load a Hugging Face folder with safetensors weights; on a CPU with the fastest attention installed."""
        folder = Path(folder)
        return cls(TargetConfig.from_dir(folder), _read_weights(folder, dtype, device), _find_attention(str(device)))

    def empty_cache(self, rows: int, positions: int) -> KeyValueCache:
        """Reserve room for ``positions`` tokens of each of ``rows`` sequences."""
        return KeyValueCache.empty(self.config, rows, positions, self.dtype, self.device)

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
        positions = lengths[:, None] + torch.arange(ids.shape[1], device=self.device)
        owner = torch.arange(len(ids), device=self.device) if rows is None else rows
        where = _Places(owner[:, None], positions, self._cos[positions], self._sin[positions])
        attend = self.plan_attention(lengths, ids.shape[1], rows)
        stream = F.embedding(ids, self.embed)
        taps = {-1: stream} if -1 in feature_layers else {}
        for index, layer in enumerate(self._layers):
            stream = stream + self._attention(index, layer, stream, cache, where, attend)
            gate, up = layer.gate_up(self._norm(stream, layer.post_norm)).chunk(2, -1)
            stream = stream + layer.down(F.silu(gate) * up)
            if index in feature_layers:
                taps[index] = stream
        features = torch.cat([taps[layer] for layer in feature_layers], -1) if len(feature_layers) else None
        return self._norm(stream, self._final_norm), features

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits [..., V] of final-norm hidden states [..., d]."""
        return self._head(hidden)

    def _attention(
        self, index: int, layer: _Layer, stream: Tensor, cache: KeyValueCache, where: _Places, attend: Attend
    ) -> Tensor:
        config = self.config
        batch, new, _ = stream.shape
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        fused = layer.qkv(self._norm(stream, layer.input_norm)).view(batch, new, -1, config.head_dim)
        q, k, v = fused.split((heads, kv_heads, kv_heads), 2)
        if layer.qk_norms is not None:
            q, k = self._norm(q, layer.qk_norms[0]), self._norm(k, layer.qk_norms[1])
        q, k = _rotate(q, where.cos, where.sin), _rotate(k, where.cos, where.sin)
        cache.k[index][where.rows, where.positions] = k
        cache.v[index][where.rows, where.positions] = v
        return layer.o_proj(attend(q, cache.k[index], cache.v[index]).reshape(batch, new, -1))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return (wide * scale).to(x.dtype) * weight


@dataclass(frozen=True)
class _Places:
    """Where the new tokens of one forward sit: rows of the cache [B, 1], positions [B, T], and their rotation."""

    rows: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor


@cache
def _find_attention(device: str) -> PlanAttention:
    """Return what an installed package offers for ``device`` under the entry points ``sgl_dspark.attention``."""
    for entry in metadata.entry_points(group="sgl_dspark.attention"):
        if entry.name == device:
            try:
                found: PlanAttention = entry.load()
            except ModuleNotFoundError:
                # The package is there, what it builds on (the ``serve`` extra) is not.
                break
            return found
    return plan_torch_attention


def load_embeddings(
    folder: Path | str, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return the target's embedding and head, [V, d] each (one tensor when tied), and none of its layers."""
    wanted = ("model.embed_tokens.weight", "lm_head.weight")
    weights = _read_weights(Path(folder), dtype, device, wanted)
    if wanted[0] not in weights:
        raise TargetError(f"the weights in {folder} lack {wanted[0]}.")
    return weights[wanted[0]], weights.get(wanted[1], weights[wanted[0]])


def _read_weights(
    folder: Path, dtype: torch.dtype, device: torch.device | str, wanted: Sequence[str] | None = None
) -> dict[str, Tensor]:
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise TargetError(f"{folder} holds no .safetensors weights.")
    weights: dict[str, Tensor] = {}
    for shard in shards:
        try:
            with safe_open(shard, framework="pt", device=str(device)) as handle:
                for name in handle.keys():  # noqa: SIM118
                    if wanted is None or name in wanted:
                        weights[name] = handle.get_tensor(name).to(dtype)
        except (OSError, SafetensorError) as error:
            raise TargetError(f"cannot read {shard}: {error}; fetch the target again.") from error
    return weights


def _build_layer(weights: dict[str, Tensor], index: int) -> _Layer:
    def take(name: str) -> Tensor:
        full = f"model.layers.{index}.{name}.weight"
        if full not in weights:
            raise TargetError(f"the target's weights lack {full}.")
        return weights[full]

    normed = f"model.layers.{index}.self_attn.q_norm.weight" in weights
    return _Layer(
        input_norm=take("input_layernorm"),
        post_norm=take("post_attention_layernorm"),
        qkv=frozen_linear(torch.cat([take(f"self_attn.{part}_proj") for part in ("q", "k", "v")])),
        o_proj=frozen_linear(take("self_attn.o_proj")),
        gate_up=frozen_linear(torch.cat([take("mlp.gate_proj"), take("mlp.up_proj")])),
        down=frozen_linear(take("mlp.down_proj")),
        qk_norms=(take("self_attn.q_norm"), take("self_attn.k_norm")) if normed else None,
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
