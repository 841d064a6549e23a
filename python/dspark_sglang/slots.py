"""KV slots on a machine without Triton: their assignment, and the pool that holds them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def assign_req_to_token(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, slots: Tensor
) -> None:
    """Write newly reserved slots into each request's row of the slot table, in place.

    Parameters
    ----------
    req_pool_indices : int [R]
        Row of each request.
    req_to_token : int32 [requests, max context]
        The table.
    start, end : int [R]
        Columns ``start[r] .. end[r] - 1`` of request r are filled.
    slots : int [sum(end - start)]
        New slots, request-major.
    """
    counts = (end - start).long()
    total = slots.numel()
    firsts = torch.repeat_interleave(start.long() - (counts.cumsum(0) - counts), counts, output_size=total)
    columns = firsts + torch.arange(total, device=slots.device)
    rows = torch.repeat_interleave(req_pool_indices.long(), counts, output_size=total)
    req_to_token[rows, columns] = slots.to(req_to_token.dtype)


@cache
def cpu_kv_pool_class() -> type:
    """Return SGLang's KV pool for plain attention, without the Triton kernel that it warms up for tree drafts."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    class CpuKvPool(MHATokenToKVPool):
        """Drafts here are chains, whose accepted slots never move."""

        def _init_kv_copy_and_warmup(self) -> None:
            self._kv_copy_config = None

    return CpuKvPool
