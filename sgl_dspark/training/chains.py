"""Training-time test of the autoregressive baseline: gamma steps from every anchor, each on the step before.

Shape letters: C context rows, N chains (one per anchor), G = gamma steps, H query heads, J key/value heads, D head
dim, d hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgl_dspark.model.eagle3 import ChainAttend, Eagle3Drafter
from sgl_dspark.training.packing import PackedBatch


def chain_hidden(drafter: Eagle3Drafter, features: Tensor, batch: PackedBatch) -> Tensor:
    """Run a chain from every anchor, its tokens teacher-forced.

    Step 0 reads the anchor token and the target's feature of the position before it; step s reads the s-th token after
    the anchor and the hidden state of step s - 1. Each sees step-0 rows of its conversation up to its own start, and
    its own chain.

    Parameters
    ----------
    drafter : Eagle3Drafter
    features : [C, m*d]
        The batch's, as the draft takes them.
    batch : PackedBatch

    Returns
    -------
    [N, G, d]
        Post-norm hidden states: step s predicts what slot s of a block draft predicts.
    """
    projected = drafter.project_features(features)
    context_k, context_v = drafter.context_kv(projected, batch.next_tokens, batch.positions)
    starts = batch.anchors - 1
    stream = projected[_row_of(batch, starts)]
    memory = _Chains(context_k, context_v, batch, starts)
    found = []
    for step in range(batch.gamma):
        stream = drafter.step(stream, batch.prev_tokens[:, step], starts + step, memory.attend(step))
        found.append(drafter.norm(stream))
    return torch.stack(found, 1)


def _row_of(batch: PackedBatch, positions: Tensor) -> Tensor:
    """Context rows int64 [N] of one position per block."""
    counts = torch.tensor(batch.block_bounds).diff()
    first = torch.tensor(batch.context_bounds[:-1]).repeat_interleave(counts)
    return first.to(positions.device) + positions


class _Chains:
    """What every chain has seen: rows of its conversation before its start, and its own steps."""

    def __init__(self, context_k: Tensor, context_v: Tensor, batch: PackedBatch, starts: Tensor) -> None:
        self._k, self._v = context_k, context_v
        self._spans = [
            (slice(*batch.context_bounds[b : b + 2]), slice(*batch.block_bounds[b : b + 2]))
            for b in range(len(batch.block_bounds) - 1)
            if batch.block_bounds[b] < batch.block_bounds[b + 1]
        ]
        self._hidden = [
            torch.where(batch.positions[context] < starts[chains][:, None], 0.0, -torch.inf)
            for context, chains in self._spans
        ]
        self._own: list[tuple[Tensor, Tensor]] = []

    def attend(self, step: int) -> ChainAttend:
        """Return the attention of one step; steps must come in order."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            assert step == len(self._own)
            self._own.append((k, v))
            own_k, own_v = (torch.stack(parts, 1) for parts in zip(*self._own, strict=True))
            rows = [
                _attend(self._k[context], self._v[context], q[chains], own_k[chains], own_v[chains], bias)
                for (context, chains), bias in zip(self._spans, self._hidden, strict=True)
            ]
            return torch.cat(rows) if rows else q

        return attend


def _attend(ctx_k: Tensor, ctx_v: Tensor, q: Tensor, own_k: Tensor, own_v: Tensor, bias: Tensor) -> Tensor:
    """Attend n chains: ctx [S, J, D], q [n, H, D], own [n, steps, J, D], bias [n, S]; softmax in fp32."""
    rows, heads, dim = q.shape
    length, kv_heads = ctx_k.shape[:2]
    group = heads // kv_heads
    queries = (q * dim**-0.5).view(rows, kv_heads, group, dim)
    context = torch.einsum("njgd,sjd->njgs", queries, ctx_k).float() + bias[:, None, None]
    own = torch.einsum("njgd,ntjd->njgt", queries, own_k).float()
    probs = torch.cat((context, own), -1).softmax(-1).to(own_v.dtype)
    out = torch.einsum("njgs,sjd->njgd", probs[..., :length], ctx_v)
    out = out + torch.einsum("njgt,ntjd->njgd", probs[..., length:], own_v)
    return out.reshape(q.shape)
