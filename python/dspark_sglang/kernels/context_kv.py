"""Write the draft's context KV to the target's slots: one kernel for all layers on a CUDA device, else torch.

Shapes: n tokens, m*d features, L layers, J key/value heads, D head dim, N slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sglang.kernels.choice import kernels_run_on

if TYPE_CHECKING:
    from torch import Tensor

    from sgl_dspark.model.drafter import Drafter


def write_context(drafter: Drafter, buffer: Tensor, features: Tensor, positions: Tensor, slots: Tensor) -> None:
    """Project target features to keys and values of every draft layer, and write them (Eq. 2 and 3).

    The kernel serves a draft after ``fuse_for_serving``; it norms and rotates in fp32 and rounds once, where torch
    rounds to the draft's dtype after each operation.

    Parameters
    ----------
    drafter : Drafter
    buffer : float [L, 2, N, J, D]
        The draft's pool, keys and values; the last axis contiguous.
    features : float [n, m*d]
        Target features of the tokens.
    positions : int64 [n]
        Absolute positions, below what the draft has reserved.
    slots : int64 [n]
        Slots that the target wrote for them, distinct. A kernel writes nothing for a negative slot, so that rows can
        pad a captured batch; torch refuses one.
    """
    context = drafter.project_context(features)
    raw = drafter.raw_context_kv(context) if kernels_run_on(context.device) else None
    if raw is None or drafter.context_k_scale is None:
        keys, values = drafter.context_kv(context, positions)
        buffer[:, 0].index_copy_(1, slots, keys)
        buffer[:, 1].index_copy_(1, slots, values)
        return
    from dspark_sglang.kernels.triton_ops.context_kv import launch

    table = drafter.rotary.table(raw.device, raw.dtype)
    launch(raw, drafter.context_k_scale, table, positions, slots, buffer, drafter.config.rms_norm_eps)
