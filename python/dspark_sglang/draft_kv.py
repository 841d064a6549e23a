"""The draft's context KV: one pool, indexed by the target's own slot ids.

Whoever writes a slot of the target (prefill or verification) writes the draft's
keys and values of the same slot from the captured features. Prefix-cache hits,
chunked prefill, retraction and eviction then need no bookkeeping of their own.

Shape legend: L draft layers, S slots, K KV heads, D head dim, N tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dspark_sglang.attention.cpu import run_plan
from dspark_sglang.kernels.context_kv import write_context

if TYPE_CHECKING:
    from dspark_sglang.attention.flashinfer import PagedAttention
    from dspark_sglang.attention.layout import RaggedPlan
    from sgl_dspark.config import DrafterConfig
    from sgl_dspark.model.drafter import Drafter


class DraftKvPool:
    """Keys and values of every draft layer, ``[L, 2, S, K, D]``.

    Parameters
    ----------
    config : DrafterConfig
        Gives L, K and D.
    num_slots : int
        Slots of the target's pool, the reserved ones included.
    dtype, device : torch dtype and device of the draft's activations.
    """

    def __init__(self, config: DrafterConfig, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_hidden_layers, 2, num_slots, config.num_key_value_heads, config.head_dim)
        # Zeros, since masked positions are read before anything was written to them,
        # and 0 * NaN would spread through the softmax's product with the values.
        self.buffer = torch.zeros(shape, dtype=dtype, device=device)
        self.scale = config.head_dim**-0.5

    def write_context(
        self, drafter: Drafter, features: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write the context KV of N tokens (Eq. 2 and 3).

        Parameters
        ----------
        drafter : Drafter
            Projects the features.
        features : float [N, m * d]
            Target features of the tokens.
        positions : int64 [N]
            Absolute positions.
        slots : int64 [N]
            Slots that the target wrote for them.
        """
        write_context(drafter, self.buffer, features, positions, slots)

    def attend(self, plan: RaggedPlan, slots: torch.Tensor) -> BlockAttention:
        """Return the attention that a block forward calls once a layer.

        Parameters
        ----------
        plan : RaggedPlan
            Not causal; each request's KV is its context followed by its block.
        slots : int64 [R * gamma]
            Where the block's own keys and values go: the slots reserved for the
            verification that follows, which overwrites nothing that is committed.
        """
        return BlockAttention(self, plan, slots)


class BlockAttention:
    """Writes a layer's block KV, then attends to context and block."""

    def __init__(self, pool: DraftKvPool, plan: RaggedPlan, slots: torch.Tensor) -> None:
        self._pool = pool
        self._plan = plan
        self._slots = slots

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `sgl_dspark.model.attention.Attend`; rows are request-major."""
        keys, values = self._pool.buffer[layer]
        keys.index_copy_(0, self._slots, k)
        values.index_copy_(0, self._slots, v)
        return run_plan(self._plan, q, keys, values, self._pool.scale)


class PagedBlockAttention:
    """Does the same through a paged kernel that was planned for the block's rows."""

    def __init__(self, pool: DraftKvPool, attention: PagedAttention, slots: torch.Tensor) -> None:
        self._pool, self._attention, self._slots = pool, attention, slots

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `sgl_dspark.model.attention.Attend`; rows are request-major."""
        keys, values = self._pool.buffer[layer]
        keys.index_copy_(0, self._slots, k)
        values.index_copy_(0, self._slots, v)
        return self._attention.run(q, keys, values)
