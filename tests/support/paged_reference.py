"""Paged prefill in plain torch with FlashInfer's signature: it reads what a plan put into its buffers, nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.support.fake_graph import FakeGraph


class ReferencePagedPrefill:
    """Stands where FlashInfer's wrapper does; runs on a CPU.

    With ``use_cuda_graph`` it reads the persistent buffers at each run, as a captured kernel does.
    """

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert kv_layout == "NHD"
        self.persistent = use_cuda_graph
        self.buffers: list[Any] = [
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
        ]
        self.most_rows: int | None = None
        self.plans = 0

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: Any = None,
        kv_data_type: Any = None,
        non_blocking: bool = True,
    ) -> None:
        given = [qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len]
        assert all(array.dtype == torch.int32 for array in given)
        assert int(paged_kv_indptr[-1]) == len(paged_kv_indices)
        self.heads, self.page_size = (num_qo_heads, num_kv_heads, head_dim_qk), page_size
        self.causal, self.scale = causal, sm_scale
        self.plans += 1
        self.rows = int(qo_indptr[-1])
        if not self.persistent:
            self.buffers = given
            return
        rows = int(qo_indptr[-1])
        self.most_rows = rows if self.most_rows is None else self.most_rows
        assert rows <= self.most_rows, "FlashInfer keeps the first plan's rows as the bound"
        for buffer, array in zip(self.buffers, given, strict=True):
            assert buffer.dtype == torch.int32
            assert len(array) == len(buffer) or buffer is self.buffers[2]
            buffer[: len(array)].copy_(array, non_blocking=non_blocking)

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        if len(q) != self.rows:
            raise ValueError(f"q.shape[0] ({len(q)}) does not match qo_indptr[-1] ({self.rows}).")
        if FakeGraph.recording is None:
            return self._attend(q, paged_kv_cache)
        reads = [q, *paged_kv_cache, *self.buffers]
        return FakeGraph.recording.opaque(lambda: self._attend(q, paged_kv_cache), reads)

    def _attend(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        qo_indptr, kv_indptr, indices, last = (buffer.tolist() for buffer in self.buffers)
        keys, values = paged_kv_cache
        heads, kv_heads, dim = self.heads
        assert q.shape[1:] == (heads, dim)
        assert keys.shape[1:] == (self.page_size, kv_heads, dim)
        out = torch.full_like(q, torch.nan)
        for r in range(len(last)):
            rows = q[qo_indptr[r] : qo_indptr[r + 1]].double()
            pages = indices[kv_indptr[r] : kv_indptr[r + 1]]
            if not len(rows):
                continue
            length = (len(pages) - 1) * self.page_size + last[r]
            k, v = (pool[pages].flatten(0, 1)[:length].double() for pool in (keys, values))
            k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
            scores = torch.einsum("qhd,khd->hqk", rows, k) * self.scale
            if self.causal:
                seen = torch.arange(length) <= torch.arange(len(rows)).unsqueeze(1) + length - len(rows)
                scores = scores.masked_fill(~seen, -torch.inf)
            # As in a kernel, what is masked weighs 0 and is multiplied all the same: 0 * NaN shows.
            out[qo_indptr[r] : qo_indptr[r + 1]] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype)
        return out
