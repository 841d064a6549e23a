"""The ragged CPU kernel for the decoder of training and offline evaluation (``sgl_dspark.model.target``).

Imports nothing of SGLang, which would take seconds at every start of a command.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from dspark_sglang.attention import kernel
from dspark_sglang.attention.layout import RaggedPlan, build_plan
from sgl_dspark.model.target import Attend, plan_torch_attention


def plan_attention(lengths: Tensor, new: int, rows: Tensor | None) -> Attend:
    """Plan causal attention of ``new`` tokens a row over a cache; see ``sgl_dspark.model.target.PlanAttention``."""
    kv_lens = [length + new for length in lengths.tolist()]
    taking_part = torch.arange(len(kv_lens)) if rows is None else rows
    plain = plan_torch_attention(lengths, new, rows)

    @functools.cache
    def planned(cache_rows: int, positions: int) -> RaggedPlan:
        return build_plan(_slots(cache_rows, positions), taking_part, [new] * len(kv_lens), kv_lens, causal=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries, keys, values = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        if not kernel.supported(queries, keys, values):
            return plain(q, k, v)
        plan = planned(k.shape[0], k.shape[1])
        return kernel.attend(plan, queries, keys, values, q.shape[-1] ** -0.5).view(q.shape)

    return attend


@functools.lru_cache(maxsize=8)
def _slots(rows: int, positions: int) -> Tensor:
    """Return the slot of every position of a cache that is one block of memory."""
    return torch.arange(rows * positions).view(rows, positions)
