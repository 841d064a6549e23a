"""A ragged plan as paged prefill kernels take it: row and page boundaries, a page table, tiers with padding.

Host arrays are made from lengths that the host knows; nothing here reads the device. The page table alone is looked up
on the device, where the slots are, into a buffer that stays where it is, so that a captured graph finds it.

Shape legend: R requests, S request slots of a tier (R of them taken), N query rows, P pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sglang.attention.tiles import PADDING_SLOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

# SGLang hands out no slot of this page; padding requests read its first slot and write nowhere else.
RESERVED_PAGE = PADDING_SLOT


@dataclass(frozen=True)
class PagedPlan:
    """Boundaries of one forward's rows and pages, in the host's memory.

    Attributes
    ----------
    qo_indptr : int32 [S + 1]
        First query row of each request slot, then N.
    kv_indptr : int32 [S + 1]
        First page of each request slot, then P.
    last_page_len : int32 [S]
        Tokens in the last page of each, 1..page_size; 1 for a request slot without pages.
    rows, pages : int
        Query rows N and entries of the page table P, those of padding requests included.
    requests : int
        R; the slots after it are padding.
    page_size : int
    causal : bool
        As in `layout.RaggedPlan`.
    """

    qo_indptr: Tensor
    kv_indptr: Tensor
    last_page_len: Tensor
    rows: int
    pages: int
    requests: int
    page_size: int
    causal: bool

    @property
    def slots(self) -> int:
        """Request slots S, the padding ones included."""
        return self.last_page_len.numel()


def build_paged(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    page_size: int,
    causal: bool,
    slots: int | None = None,
    padding_rows: int = 0,
) -> PagedPlan:
    """Plan one forward over flat, request-major query rows.

    Parameters
    ----------
    q_lens, kv_lens : sequences of int, length R
        Query rows and KV tokens (those rows included) per request; a causal request has no more rows than tokens.
    page_size : int
        Tokens of a page: slot ``s`` lies in page ``s // page_size``.
    causal : bool
    slots : int, optional
        S, the request slots of a graph's tier; R by default.
    padding_rows : int, optional
        Query rows of each slot after R. They see the first slot of the reserved page alone. 0: such slots have no
        rows and no pages.

    Returns
    -------
    PagedPlan

    Raises
    ------
    ValueError
        If a request does not fit its KV, or there are more requests than slots.
    """
    requests = len(q_lens)
    total = requests if slots is None else slots
    if requests > total:
        raise ValueError(f"{requests} requests do not fit in {total} request slots; choose a larger tier")
    rows, tokens = np.zeros(total, np.int64), np.zeros(total, np.int64)
    rows[:requests], tokens[:requests] = q_lens, kv_lens
    wrong = np.flatnonzero((rows < 0) | (tokens < 0) | ((rows > tokens) & causal) | ((rows > 0) & (tokens == 0)))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"request {at}: {rows[at]} query rows do not fit in {tokens[at]} KV tokens")
    if padding_rows:
        rows[requests:], tokens[requests:] = padding_rows, 1
    pages = -(-tokens // page_size)
    last = np.where(tokens > 0, tokens - (pages - 1) * page_size, 1)
    last_page_len = torch.from_numpy(last.astype(np.int32))
    totals = int(rows.sum()), int(pages.sum())
    return PagedPlan(_indptr(rows), _indptr(pages), last_page_len, *totals, requests, page_size, causal)


def _indptr(counts: np.ndarray) -> Tensor:
    found = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=found[1:])
    return torch.from_numpy(found)


def fill_page_table(
    plan: PagedPlan, kv_indptr: Tensor, req_to_token: Tensor, request_rows: Tensor, counting: Tensor, out: Tensor
) -> Tensor:
    """Look up the pages of every request, on the device and without waiting for it.

    Parameters
    ----------
    plan : PagedPlan
    kv_indptr : int32 [S + 1]
        The plan's, on the device.
    req_to_token : int32 or int64 [requests of the pool, max context]
        KV slot of every position. A request's pages are whole: position p is at offset ``p % page_size``.
    request_rows : int64 [R]
        Row of ``req_to_token`` of each request.
    counting : int64 [at least P]
        0, 1, 2, ...; kept by the caller.
    out : int32 [at least P]
        Written up to P. What lies beyond is left as it was and is not read.

    Returns
    -------
    int32 [P]
        The part of ``out`` that was written.
    """
    table = out[: plan.pages]
    if not plan.pages or not plan.requests:
        return table.fill_(RESERVED_PAGE)
    places = counting[: plan.pages]
    owners = torch.searchsorted(kv_indptr[1:], places.to(kv_indptr.dtype), right=True)
    columns = (places - kv_indptr[owners]) * plan.page_size
    # Padding requests come last; their page is the reserved one whatever the row of the last request holds.
    real = owners < plan.requests
    rows = request_rows[owners.clamp(max=plan.requests - 1)]
    pages = req_to_token[rows, torch.where(real, columns, 0)] // plan.page_size
    return table.copy_(torch.where(real, pages, RESERVED_PAGE))
