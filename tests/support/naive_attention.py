"""Ragged attention the slow way: one request, one row and one head at a time, in fp64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def naive_attention(
    slots_of: Sequence[Sequence[int]],
    q_lens: Sequence[int],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    *,
    causal: bool,
) -> Tensor:
    """Attend queries [T, H, D] to keys and values [S, K, D]; ``slots_of[r]`` lists request r's own KV in order."""
    q, k, v = queries.double(), keys.double(), values.double()
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    row = 0
    for slots, q_len in zip(slots_of, q_lens, strict=True):
        for i in range(q_len):
            visible = list(slots[: len(slots) - q_len + i + 1]) if causal else list(slots)
            for head in range(q.shape[1]):
                weights = (k[visible, head // group] @ q[row, head] * scale).softmax(0)
                out[row, head] = weights @ v[visible, head // group]
            row += 1
    return out
