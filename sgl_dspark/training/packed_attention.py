"""The exact training mask over packed blocks (Sec. 3.1), without padding: by index, or through flex attention.

A block sees the context of its own conversation strictly before its anchor, and all of its own slots. Shape letters as
in ``packing``; H query heads, J key/value heads, D head dim, L draft layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.model.attention import Attend
from sgl_dspark.training.packing import PackedBatch


def attend_packed(context_k: Tensor, context_v: Tensor, batch: PackedBatch) -> Attend:
    """Choose how packed blocks attend: flex attention on CUDA, by index elsewhere.

    Parameters
    ----------
    context_k, context_v : [L, C, J, D]
        From ``Drafter.context_kv``.
    batch : PackedBatch
    """
    chosen = flex_attend if context_k.device.type == "cuda" else index_attend
    return chosen(context_k, context_v, batch)


def index_attend(context_k: Tensor, context_v: Tensor, batch: PackedBatch) -> Attend:
    """Attend conversation by conversation to rows cut out by index: cost grows with blocks times their own context.

    Returns
    -------
    Attend
        Softmax in fp32.
    """
    gamma = batch.gamma
    spans = [
        (slice(*batch.context_bounds[b : b + 2]), slice(*batch.block_bounds[b : b + 2]))
        for b in range(len(batch.block_bounds) - 1)
        if batch.block_bounds[b] < batch.block_bounds[b + 1]
    ]
    # What a block must not see gets -inf: [n, 1, S] per conversation, shared by heads and layers.
    hidden = [
        torch.where(batch.positions[context] < batch.anchors[blocks][:, None], 0.0, -torch.inf)[:, None]
        for context, blocks in spans
    ]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = []
        for (context, blocks), bias in zip(spans, hidden, strict=True):
            part = slice(blocks.start * gamma, blocks.stop * gamma)
            own = q[part], k[part], v[part]
            rows.append(_window(context_k[layer, context], context_v[layer, context], *own, bias, gamma))
        return torch.cat(rows) if rows else q

    return attend


def _window(ctx_k: Tensor, ctx_v: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, gamma: int) -> Tensor:
    """Let n blocks of one conversation attend: ctx [S, J, D], q [n*G, H, D], k and v [n*G, J, D], bias [n, 1, S]."""
    heads, dim = q.shape[1:]
    length, kv_heads = ctx_k.shape[:2]
    blocks = q.shape[0] // gamma
    group = heads // kv_heads
    # [J, n, G*group, D]: heads that share a key head are further query rows.
    queries = (q * dim**-0.5).view(blocks, gamma, kv_heads, group, dim).permute(2, 0, 1, 3, 4)
    queries = queries.reshape(kv_heads, blocks, gamma * group, dim)
    own_k, own_v = (x.view(blocks, gamma, kv_heads, dim).permute(2, 0, 1, 3) for x in (k, v))
    flat = queries.view(kv_heads, -1, dim)
    context = torch.bmm(flat, ctx_k.permute(1, 2, 0)).view(kv_heads, blocks, -1, length).float() + bias
    own = torch.matmul(queries, own_k.transpose(-1, -2)).float()
    probs = torch.cat((context, own), -1).softmax(-1).to(v.dtype)
    seen, inside = probs.split((length, gamma), -1)
    out = torch.bmm(seen.reshape(kv_heads, -1, length), ctx_v.transpose(0, 1)).view(queries.shape)
    out = out + torch.matmul(inside, own_v)
    return out.view(kv_heads, blocks, gamma, group, dim).permute(1, 2, 0, 3, 4).reshape(q.shape)


def flex_attend(context_k: Tensor, context_v: Tensor, batch: PackedBatch) -> Attend:
    """Attend through one block-sparse mask over context and blocks of all conversations (flex attention)."""
    from torch.nn.attention.flex_attention import create_block_mask

    device = context_k.device.type
    # Compiled, the mask is built block by block instead of as one dense matrix.
    build = torch.compile(create_block_mask, dynamic=True) if device == "cuda" else create_block_mask
    owner_of_row, owner_of_block = _owners(batch)
    contexts, gamma = len(batch.positions), batch.gamma
    positions, anchors = batch.positions, batch.anchors

    def mask_mod(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block = query // gamma
        row = key.clamp(max=contexts - 1)
        own = (key - contexts) // gamma
        before = (owner_of_row[row] == owner_of_block[block]) & (positions[row] < anchors[block])
        return torch.where(key < contexts, before, own == block)

    queries = len(anchors) * gamma
    mask = build(mask_mod, None, None, queries, contexts + queries, device=str(context_k.device))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Under autocast norms give fp32, and flex attention takes its inputs as they are.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else q.dtype
        keys = torch.cat((context_k[layer].to(dtype), k.to(dtype))).transpose(0, 1)[None]
        values = torch.cat((context_v[layer].to(dtype), v.to(dtype))).transpose(0, 1)[None]
        queries_ = q.to(dtype).transpose(0, 1)[None]
        out: Tensor = _flex(device)(queries_, keys, values, block_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)

    return attend


@cache
def _flex(device: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # Uncompiled it is a plain reference with full score matrices: right for tests, too large for training.
    found: Callable[..., Any] = flex_attention
    return torch.compile(found, dynamic=True) if device == "cuda" else found


def _owners(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Return the number of the conversation of every context row [C] and of every block [N]."""
    device = batch.positions.device
    owners = []
    for bounds in (batch.context_bounds, batch.block_bounds):
        counts = torch.tensor(bounds).diff()
        owners.append(torch.arange(len(counts)).repeat_interleave(counts).to(device))
    return owners[0], owners[1]
