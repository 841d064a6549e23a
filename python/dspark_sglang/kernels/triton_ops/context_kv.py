"""Norm and rotate the context keys of all draft layers and write keys and values to their slots, in one launch.

One program per token and layer. Arithmetic in fp32, rounded once at the end.

Shapes: n tokens, L layers, J key/value heads, D head dim, P positions, N slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dspark_sglang.kernels.choice import power_of_two

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def normed_keys(raw, raw_d, rows, scale, scale_d, scale_rows, dims, inside, inverse_norm):
    """Give keys at ``dims``, divided by their norm and scaled, fp32."""
    keys = tl.load(raw + rows[:, None] + dims[None, :] * raw_d, mask=inside, other=0.0).to(tl.float32)
    scales = tl.load(scale + scale_rows[:, None] + dims[None, :] * scale_d, mask=inside, other=0.0)
    return keys * inverse_norm[:, None] * scales.to(tl.float32)


@triton.jit
def context_kv_kernel(
    raw, raw_n, raw_h, raw_d, scale, scale_h, scale_d, table, table_p, table_c, positions, slots, buffer, buffer_l,
    buffer_c, buffer_n, buffer_j, eps, layers, heads, size, HEADS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write token ``program_id(0)``, layer ``program_id(1)``."""
    token, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        head, dims = tl.arange(0, HEADS), tl.arange(0, SIZE)
        inside = (head < heads)[:, None] & (dims < size)[None, :]
        rows = token * raw_n + (layer * heads + head) * raw_h
        keys = tl.load(raw + rows[:, None] + dims[None, :] * raw_d, mask=inside, other=0.0).to(tl.float32)
        inverse_norm = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(keys * keys, 1) / size + eps))
        scale_rows = (layer * heads + head) * scale_h
        keys = normed_keys(raw, raw_d, rows, scale, scale_d, scale_rows, dims, inside, inverse_norm)
        # The other half of each pair; the sign of the rotation lies in the table.
        turned = normed_keys(
            raw, raw_d, rows, scale, scale_d, scale_rows, (dims + size // 2) % size, inside, inverse_norm
        )
        angle = table + tl.load(positions + token).to(tl.int64) * table_p + dims
        cos = tl.load(angle, mask=dims < size, other=0.0).to(tl.float32)
        sin = tl.load(angle + table_c, mask=dims < size, other=0.0).to(tl.float32)
        keys = keys * cos[None, :] + turned * sin[None, :]
        into = buffer + layer * buffer_l + slot * buffer_n + head[:, None] * buffer_j + dims[None, :]
        tl.store(into, keys.to(buffer.dtype.element_ty), mask=inside)
        rows += layers * heads * raw_h
        values = tl.load(raw + rows[:, None] + dims[None, :] * raw_d, mask=inside, other=0.0)
        tl.store(into + buffer_c, values.to(buffer.dtype.element_ty), mask=inside)


def launch(
    raw: Tensor, scale: Tensor, table: Tensor, positions: Tensor, slots: Tensor, buffer: Tensor, eps: float
) -> None:
    """Write the context KV of n tokens.

    Parameters
    ----------
    raw : float [n, 2 * L * J, D]
        From ``Drafter.raw_context_kv``: keys of all layers' heads, then values; any strides.
    scale : float [L * J, D]
        Weights of the key norms.
    table : float [P, 2, D]
        ``RotaryTable.table``: cosines, then signed sines.
    positions : int64 [n]
        In [0, P).
    slots : int64 [n]
        In [0, N) and distinct; tokens with a negative slot only pad a captured batch and are not written.
    buffer : float [L, 2, N, J, D]
        Last axis contiguous.
    eps : float
        Of the key norms.
    """
    layers, _, _, heads, size = buffer.shape
    if raw.shape[0] == 0:
        return
    context_kv_kernel[(raw.shape[0], layers)](
        raw, *raw.stride(), scale, *scale.stride(), table, *table.stride()[:2], positions.contiguous(),
        slots.contiguous(), buffer, *buffer.stride()[:4], eps, layers, heads, size,
        HEADS=power_of_two(heads), SIZE=power_of_two(size),
    )  # fmt: skip
