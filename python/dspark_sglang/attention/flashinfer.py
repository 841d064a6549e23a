"""FlashInfer's paged prefill kernel, executing a `paged.PagedPlan`: prefill, verification and draft blocks.

A plan is made once a step from lengths that the host knows, and run once a layer. Nothing waits for a result of the
device. With request slots and capacities given, all buffers stay where they are, so that the runs can be captured in a
CUDA graph and replayed after another plan.

Shape legend: S request slots, N query rows, P pages, C KV slots, H query heads, K KV heads, D head dim.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang.attention.paged import fill_page_table
from dspark_sglang.graphs import staged
from sgl_dspark.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_sglang.attention.paged import PagedPlan

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)
LEAST_CAPABILITY = (8, 0)
LEAST_WORKSPACE = 128 << 20
# What the kernel's planner may ask for: tiles of up to this many (row, head of a group) pairs, and two CTAs on each
# multiprocessor of the largest device.
_LARGEST_TILE, _MOST_CTAS = 128, 2 * 192


@dataclass(frozen=True)
class Heads:
    """What a planned kernel is compiled for and planned with.

    Attributes
    ----------
    queries, keys, dim : int
        H, K and D; H is a multiple of K.
    dtype : torch dtype of queries, keys, values and results.
    scale : float
        Multiplied into the scores before the softmax.
    page_size : int
        Tokens of a page of the KV pool.
    """

    queries: int
    keys: int
    dim: int
    dtype: torch.dtype
    scale: float
    page_size: int = 1


def unsupported(heads: Heads, device: torch.device) -> str | None:
    """Say why FlashInfer cannot attend with these heads on this device; None if it can.

    Asks CUDA only where torch says that there is a device.
    """
    if device.type != "cuda":
        return f"FlashInfer needs a CUDA device, not {device.type}"
    if heads.dtype not in DTYPES:
        return f"FlashInfer's prefill kernels take float16 and bfloat16, not {str(heads.dtype).removeprefix('torch.')}"
    if heads.dim not in HEAD_DIMS:
        return f"a head dim of {heads.dim} is none of {', '.join(map(str, HEAD_DIMS))}"
    if heads.keys < 1 or heads.queries % heads.keys:
        return f"{heads.queries} query heads are no multiple of {heads.keys} KV heads"
    if importlib.util.find_spec("flashinfer") is None:
        return "the package flashinfer-python is not installed"
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return "the device is older than compute capability 8.0"
    return None


def wrapper_class(heads: Heads, device: torch.device) -> Any:
    """Return FlashInfer's paged prefill wrapper.

    Raises
    ------
    ConfigError
        If it cannot attend here; says why and what to do.
    """
    reason = unsupported(heads, device)
    if reason is not None:
        raise ConfigError(f"{reason}; serve in float16 or bfloat16 on a CUDA device, or leave FlashInfer out")
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    return BatchPrefillWithPagedKVCacheWrapper


def workspace_bytes(heads: Heads, slots: int, rows: int) -> int:
    """Bound what partial results of split KV take for ``rows`` rows in ``slots`` request slots."""
    group = heads.queries // heads.keys
    tiles = slots + -(-_MOST_CTAS // heads.keys)
    partial_rows = rows + -(-tiles * _LARGEST_TILE // group)
    return max(LEAST_WORKSPACE, heads.queries * partial_rows * (heads.dim + 1) * 4)


class PageTable:
    """Room for the page tables of graphs, one for all of them, since each plan fills it anew.

    Parameters
    ----------
    pages : int
        Most pages of one forward, shared prefixes counted once for each request.
    device : torch.device
    """

    def __init__(self, pages: int, device: torch.device) -> None:
        self.entries = torch.zeros(pages, dtype=torch.int32, device=device)
        self.counting = torch.arange(pages, device=device)

    @property
    def pages(self) -> int:
        """Entries there are."""
        return self.entries.numel()


@dataclass(frozen=True)
class Capacity:
    """Sizes of buffers that stay: request slots S, most query rows, and the page table that is filled."""

    slots: int
    rows: int
    table: PageTable


class PagedAttention:
    """One planned kernel.

    Parameters
    ----------
    heads : Heads
    device : torch.device
    workspace : uint8 tensor
        Scratch of the kernels, at least `workspace_bytes`; shared by everything that runs on the same stream.
    capacity : Capacity, optional
        Keeps all buffers in place for graph replay, and fixes S. Without it plans may have any size.
    make_wrapper : callable, optional
        In place of FlashInfer's class, with its signature.
    """

    def __init__(
        self,
        heads: Heads,
        device: torch.device,
        workspace: Tensor,
        capacity: Capacity | None = None,
        make_wrapper: Any = None,
    ) -> None:
        self.heads, self.capacity = heads, capacity
        self._device = device
        make = wrapper_class(heads, device) if make_wrapper is None else make_wrapper
        self._copied: Any = None
        self._rows = 0
        if capacity is None:
            self._counting = torch.arange(0, device=device)
            self._wrapper = make(workspace, kv_layout="NHD", backend="fa2")
            return

        def ints(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self._kv_indptr, self._counting = ints(capacity.slots + 1), capacity.table.counting
        self._wrapper = make(
            workspace,
            kv_layout="NHD",
            use_cuda_graph=True,
            qo_indptr_buf=ints(capacity.slots + 1),
            paged_kv_indptr_buf=self._kv_indptr,
            paged_kv_indices_buf=capacity.table.entries,
            paged_kv_last_page_len_buf=ints(capacity.slots),
            backend="fa2",
        )

    def plan(self, plan: PagedPlan, req_to_token: Tensor, request_rows: Tensor) -> None:
        """Set what the next runs compute.

        Parameters
        ----------
        plan : PagedPlan
            Of this capacity. The first plan of a capacity must have its most rows, which FlashInfer keeps as the bound.
        req_to_token, request_rows
            See `fill_page_table`.

        Raises
        ------
        ValueError
            If the plan exceeds the capacity.
        """
        self._refuse_larger(plan)
        self._rows = plan.rows
        if self._copied is not None:
            # Sync: FlashInfer stages its plan in one pinned buffer. What is waited for is the last plan's copy alone,
            # which lies before that step's kernels and has long been made.
            self._copied.synchronize()
        arrays = (plan.qo_indptr, plan.kv_indptr, plan.last_page_len)
        qo_indptr, kv_indptr, last = (staged(array, self._device) for array in arrays)
        if self.capacity is None:
            on_device = kv_indptr.to(self._device, non_blocking=True)
            if self._counting.numel() < plan.pages:
                self._counting = torch.arange(2 * plan.pages, device=self._device)
            table = torch.empty(plan.pages, dtype=torch.int32, device=self._device)
        else:
            on_device = self._kv_indptr.copy_(kv_indptr, non_blocking=True)
            table = self.capacity.table.entries
        indices = fill_page_table(plan, on_device, req_to_token, request_rows, self._counting, table)
        heads = self.heads
        self._wrapper.plan(
            qo_indptr=qo_indptr,
            paged_kv_indptr=kv_indptr,
            paged_kv_indices=indices,
            paged_kv_last_page_len=last,
            num_qo_heads=heads.queries,
            num_kv_heads=heads.keys,
            head_dim_qk=heads.dim,
            page_size=heads.page_size,
            causal=plan.causal,
            sm_scale=heads.scale,
            q_data_type=heads.dtype,
            kv_data_type=heads.dtype,
            non_blocking=True,
        )
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record()

    def _refuse_larger(self, plan: PagedPlan) -> None:
        if plan.page_size != self.heads.page_size:
            raise ValueError(f"the plan has pages of {plan.page_size} tokens, the pool of {self.heads.page_size}")
        own = self.capacity
        if own is None:
            return
        if plan.slots != own.slots or plan.rows > own.rows or plan.pages > own.table.pages:
            raise ValueError(
                f"a plan of {plan.slots} request slots, {plan.rows} rows and {plan.pages} pages does not fit "
                f"buffers of {own.slots}, {own.rows} and {own.table.pages}; run it without a graph"
            )

    def run(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend as planned.

        Parameters
        ----------
        queries : [N, H, D]
            Of all planned rows, padding included, and of no more.
        keys, values : [C, K, D]
            One layer of a KV pool by slot, contiguous; C is a multiple of the page size.

        Returns
        -------
        [same as queries]

        Raises
        ------
        ValueError
            If there are more or fewer rows than planned, which FlashInfer refuses too.
        """
        heads = self.heads
        if len(queries) != self._rows:
            raise ValueError(f"{len(queries)} query rows for a plan of {self._rows}")
        paged = (-1, heads.page_size, heads.keys, heads.dim)
        found: Tensor = self._wrapper.run(queries, (keys.view(paged), values.view(paged)))
        return found
