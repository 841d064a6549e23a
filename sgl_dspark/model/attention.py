"""Rotary tables and the attention of draft blocks over their context (Sec. 3.1, Eq. 3).

Shape letters: B sequences, S context positions, N blocks per sequence, R = flat blocks, G = gamma slots, M = R*G rows,
H query heads, J key/value heads, D head_dim, L draft layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q [M,H,D], k [M,J,D], v [M,J,D]) -> [M,H,D]``: the callee owns context KV and masking."""


class RotaryTable:
    """Cosines and signed sines of every position, in the half-rotation layout of Qwen3.

    Parameters
    ----------
    head_dim : int
        Even.
    theta : float
        Base of the geometric frequency series.
    num_positions : int
        Rows; positions run from 0.
    """

    def __init__(self, head_dim: int, theta: float, num_positions: int) -> None:
        self.head_dim = head_dim
        self.theta = theta
        self.num_positions = num_positions
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def reserve(self, num_positions: int) -> None:
        """Grow to at least ``num_positions`` rows; call it before graph capture, never during."""
        if num_positions > self.num_positions:
            self.num_positions = num_positions
            self._tables.clear()

    def lookup(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines, each [n, 1, head_dim] in ``dtype``.

        Parameters
        ----------
        positions : int64 [n]
            In [0, num_positions); other values fail in the index operation.
        """
        rows = self.table(positions.device, dtype).index_select(0, positions)
        return rows[:, :1], rows[:, 1:]

    def table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the whole table, [num_positions, 2, head_dim]: cosines, then signed sines."""
        key = (device, dtype)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._build(*key)
        return table

    def _build(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        half = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        angles = torch.arange(self.num_positions).float()[:, None] * (1.0 / self.theta**half)
        cos, sin = angles.cos(), angles.sin()
        # The sign of the rotated first half lives in the table, so that rotating is a plain roll.
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
        return table.to(device=device, dtype=dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Apply rotary embedding to ``x`` [n, heads, D] with the output of :meth:`RotaryTable.lookup`."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), signed_sin)


def visible_context(anchors: Tensor, block_keep: Tensor, seq_len: int) -> Tensor:
    """Tell which context positions each block sees: those strictly before its anchor (Sec. 3.1).

    Parameters
    ----------
    anchors : int64 [B, N]
        Positions in [0, seq_len).
    block_keep : bool [B, N]
        False for padding blocks, which see nothing.
    seq_len : int
        S.

    Returns
    -------
    bool [B, N, S]
    """
    return (torch.arange(seq_len, device=anchors.device) < anchors[..., None]) & block_keep[..., None]


def block_mask(anchors: Tensor, block_keep: Tensor, seq_len: int, gamma: int) -> Tensor:
    """Tell which key each draft slot may attend to in the masked training forward (Sec. 3.1).

    A slot of a kept block sees context positions strictly before its anchor and every slot of its own block.

    Parameters
    ----------
    anchors : int64 [B, N]
        Positions in [0, seq_len).
    block_keep : bool [B, N]
        False for padding blocks, which see nothing.
    seq_len, gamma : int
        S and G.

    Returns
    -------
    bool [B, N*G, S + N*G]
        True = may attend; context keys first, then draft slots block by block.
    """
    num_blocks = anchors.shape[1]
    own = torch.eye(num_blocks, dtype=torch.bool, device=anchors.device).repeat_interleave(gamma, 1)
    own = own & block_keep[..., None]
    return torch.cat((visible_context(anchors, block_keep, seq_len), own), dim=-1).repeat_interleave(gamma, 1)


def dense_attend(context_k: Tensor, context_v: Tensor, mask: Tensor) -> Attend:
    """Attend through an explicit mask over context and all draft slots: the plain reference.

    Parameters
    ----------
    context_k, context_v : [L, B, S, J, D]
        From ``Drafter.context_kv``, reshaped.
    mask : bool [B, N*G, S + N*G]
        From :func:`block_mask`. Rows that see nothing give meaningless output.

    Returns
    -------
    Attend
        For blocks flattened as [B, N] -> R.
    """
    batch = mask.shape[0]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = torch.cat((context_k[layer], k.view(batch, -1, *k.shape[1:])), 1).transpose(1, 2)
        values = torch.cat((context_v[layer], v.view(batch, -1, *v.shape[1:])), 1).transpose(1, 2)
        queries = q.view(batch, -1, *q.shape[1:]).transpose(1, 2)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask[:, None], enable_gqa=True)
        return out.transpose(1, 2).reshape(q.shape)

    return attend


def window_attend(context_k: Tensor, context_v: Tensor, visible: Tensor) -> Attend:
    """Attend to context and own block only, so that cost grows with N*(S + G), not N*(S + N*G).

    Equal to :func:`dense_attend` on kept blocks. With B = 1 and sequences packed one after another along S, ``visible``
    expresses each block's window: ``(j >= start) & (j < start + anchor)``.

    Parameters
    ----------
    context_k, context_v : [L, B, S, J, D]
        Context keys (normed and rotated) and values of every layer.
    visible : bool [B, N, S]
        From :func:`visible_context`, or of the same meaning. A block that sees none attends to its own slots.

    Returns
    -------
    Attend
        For blocks flattened as [B, N] -> R. Softmax in fp32.
    """
    batch, num_blocks, seq_len = visible.shape
    hidden = torch.zeros(visible.shape, dtype=torch.float32, device=visible.device)
    hidden.masked_fill_(~visible, float("-inf"))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, heads, dim = q.shape
        kv_heads, gamma = k.shape[1], rows // (batch * num_blocks)
        queries = q.view(batch, num_blocks, gamma, kv_heads, heads // kv_heads, dim) * dim**-0.5
        own_k, own_v = (x.view(batch, num_blocks, gamma, kv_heads, dim) for x in (k, v))
        context = torch.einsum("bngjhd,bsjd->bjhngs", queries, context_k[layer]).float()
        context = context + hidden[:, None, None, :, None]
        own = torch.einsum("bngjhd,bnijd->bjhngi", queries, own_k).float()
        probs = torch.cat((context, own), -1).softmax(-1).to(v.dtype)
        out = torch.einsum("bjhngs,bsjd->bngjhd", probs[..., :seq_len], context_v[layer])
        out = out + torch.einsum("bjhngi,bnijd->bngjhd", probs[..., seq_len:], own_v)
        return out.reshape(q.shape)

    return attend
