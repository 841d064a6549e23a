"""Parallel draft layers (Sec. 3.1): Qwen3 decoder layers whose attention also reads the injected context.

Shape letters as in ``attention.py``: M rows of block slots, n context rows, d hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgl_dspark.config import DrafterConfig
from sgl_dspark.model.attention import Attend, rotate
from sgl_dspark.model.packed import Linear, frozen_linear


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale, computed in fp32 whatever the input's dtype (as Qwen3's)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of ``x`` [..., size]."""
        # One dtype for both, or torch leaves its fused kernel (bf16 training keeps fp32 weights).
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class SelfAttention(nn.Module):
    """Projections of one layer; the same key and value weights serve context and block (Eq. 3)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        size, dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(size, self.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(size, self.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(size, self.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * dim, size, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps)
        self.register_buffer("qkv_weight", None, persistent=False)
        self.register_buffer("qk_scale", None, persistent=False)
        self.qkv_weight: Tensor | None
        self.qk_scale: Tensor | None
        self._qkv: Linear | None = None
        self._out: Linear | None = None

    def block_qkv(self, u: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project block rows ``u`` [M, d] to q [M,H,D], k [M,J,D] (both normed and rotated) and v [M,J,D]."""
        rows = u.shape[0]
        if self._qkv is None or self.qk_scale is None:
            k, v = self.context_kv(u, cos, signed_sin)
            q = self.q_norm(self.q_proj(u).view(rows, self.num_heads, self.head_dim))
            return rotate(q, cos, signed_sin), k, v
        split = self.num_heads + self.num_kv_heads
        mixed = self._qkv(u).view(rows, split + self.num_kv_heads, self.head_dim)
        qk = F.rms_norm(mixed[:, :split], (self.head_dim,), None, self.q_norm.eps) * self.qk_scale
        qk = rotate(qk, cos, signed_sin)
        return qk[:, : self.num_heads], qk[:, self.num_heads :], mixed[:, split:]

    def context_kv(self, context: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[Tensor, Tensor]:
        """Project context rows [n, d] to k [n,J,D] (normed and rotated) and v [n,J,D]; no input norm (Sec. 3.1)."""
        shape = (context.shape[0], self.num_kv_heads, self.head_dim)
        k = self.k_norm(self.k_proj(context).view(shape))
        return rotate(k, cos, signed_sin), self.v_proj(context).view(shape)

    def out(self, attended: Tensor) -> Tensor:
        """Project attention output [M, H*D] back to [M, d]."""
        projected: Tensor = (self._out or self.o_proj)(attended)
        return projected

    def fuse(self) -> None:
        """Make q, k and v one GEMM; the three parameters become views of the fused weight, so memory does not grow."""
        self.qkv_weight = _fuse(self.q_proj, self.k_proj, self.v_proj)
        self._qkv = frozen_linear(self.qkv_weight)
        self._out = frozen_linear(self.o_proj.weight.detach())
        q_scale = self.q_norm.weight.detach().expand(self.num_heads, -1)
        k_scale = self.k_norm.weight.detach().expand(self.num_kv_heads, -1)
        self.qk_scale = torch.cat((q_scale, k_scale))


class MLP(nn.Module):
    """Gated feed-forward layer with SiLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.register_buffer("gate_up_weight", None, persistent=False)
        self.gate_up_weight: Tensor | None
        self._gate_up: Linear | None = None
        self._down: Linear | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map [M, d] to [M, d]."""
        if self._gate_up is None:
            gate, up = self.gate_proj(x), self.up_proj(x)
        else:
            gate, up = self._gate_up(x).chunk(2, dim=-1)
        down: Tensor = (self._down or self.down_proj)(F.silu(gate) * up)
        return down

    def fuse(self) -> None:
        """Make gate and up one GEMM, as :meth:`SelfAttention.fuse`."""
        self.gate_up_weight = _fuse(self.gate_proj, self.up_proj)
        self._gate_up = frozen_linear(self.gate_up_weight)
        self._down = frozen_linear(self.down_proj.weight.detach())


class DraftLayer(nn.Module):
    """One pre-norm residual layer over block slots."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, index: int, z: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend) -> Tensor:
        """Advance the block stream ``z`` [M, d] through layer ``index``."""
        q, k, v = self.self_attn.block_qkv(self.input_layernorm(z), cos, signed_sin)
        z = z + self.self_attn.out(attend(index, q, k, v).reshape(z.shape[0], -1))
        advanced: Tensor = z + self.mlp(self.post_attention_layernorm(z))
        return advanced

    def fuse(self) -> None:
        """Fuse the projections for serving; their weights no longer take gradients."""
        self.self_attn.fuse()
        self.mlp.fuse()


def _fuse(*layers: nn.Linear) -> Tensor:
    fused = torch.cat([layer.weight.detach() for layer in layers])
    start = 0
    for layer in layers:
        layer.weight = nn.Parameter(fused[start : start + layer.out_features], requires_grad=False)
        start += layer.out_features
    return fused
