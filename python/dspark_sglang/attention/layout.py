"""The ragged plan of one forward: which query rows read which KV slots.

Built once a step on the host, executed once a layer. A plan names tokens, not
layers, so the target's layers and the draft's layers execute the same type.

Shape legend: R requests, T query tokens (flat, request-major), L KV tokens of a
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sglang.attention.tiles import Gathers, Tile, make_tiles

if TYPE_CHECKING:
    from collections.abc import Sequence

# (query, head) rows that the kernel computes together.
LANES = 16


class RaggedPlan:
    """Attention of one forward over flat ragged query rows.

    Attributes
    ----------
    q_lens, kv_lens : list of int, length R
        Query rows and KV tokens per request; KV counts the rows' own tokens,
        whose keys and values are written before attention runs.
    causal : bool
        Rows are the last ``q_lens[r]`` tokens of their request and see nothing
        after themselves; otherwise every row sees all of its request's KV.
    req_to_token : int [requests of the pool, max context]
    request_rows : int64 [R]
        Row of ``req_to_token`` for each request.
    """

    def __init__(
        self,
        q_lens: list[int],
        kv_lens: list[int],
        causal: bool,
        req_to_token: torch.Tensor,
        request_rows: torch.Tensor,
    ) -> None:
        self.q_lens, self.kv_lens, self.causal = q_lens, kv_lens, causal
        self.req_to_token, self.request_rows = req_to_token, request_rows
        self._work: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    @property
    def num_rows(self) -> int:
        """Query rows T."""
        return sum(self.q_lens)

    @cached_property
    def tiles(self) -> list[Tile]:
        """How the padded executor runs it: one dense tile for requests of like size; others get tiles of their own."""
        return make_tiles(self.q_lens, self.kv_lens, self.causal, self.req_to_token, self.request_rows)

    @cached_property
    def gathers(self) -> Gathers:
        """How rows and KV of all tiles are gathered at once; made for the first layer, used by all."""
        return Gathers.of(self.tiles, self.num_rows)

    @cached_property
    def host(self) -> HostPlan:
        """The same on the host, for the executor that needs no tiles."""
        return HostPlan.of(self)

    def work(self, num_kv: int, group: int) -> tuple[np.ndarray, ...]:
        """Return `work_items` of these rows; made for the first layer, used by all."""
        found = self._work.get((num_kv, group))
        if found is None:
            found = self._work[num_kv, group] = work_items(np.diff(self.host.indptr), num_kv, group)
        return found


@dataclass(frozen=True)
class HostPlan:
    """Arrays of a plan in the host's memory.

    Attributes
    ----------
    table : int32 or int64 [requests of the pool, max context]
        Shares memory with ``req_to_token``.
    request_rows, kv_lens : int64 [R]
    indptr : int64 [R + 1]
        First query row of each request, then T.
    longest : int
        Most KV tokens of a request.
    """

    table: np.ndarray
    request_rows: np.ndarray
    kv_lens: np.ndarray
    indptr: np.ndarray
    longest: int

    @classmethod
    def of(cls, plan: RaggedPlan) -> HostPlan:
        """Convert; free on a CPU."""
        indptr = np.zeros(len(plan.q_lens) + 1, np.int64)
        np.cumsum(plan.q_lens, out=indptr[1:])
        # Sync: none on a CPU, where alone this is used.
        table, rows = plan.req_to_token.cpu().contiguous().numpy(), plan.request_rows.cpu().long().contiguous().numpy()
        return cls(table, rows, np.array(plan.kv_lens, np.int64), indptr, max(plan.kv_lens, default=0))


def work_items(q_lens: np.ndarray, num_kv: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split a forward into parts that share nothing: up to LANES query rows of one request and one KV head.

    Parameters
    ----------
    q_lens : int64 [R]
    num_kv, group : int
        KV heads, and query heads per KV head.

    Returns
    -------
    request, head, row : int64 [N]
        ``row`` counts (query, head of the group) pairs of the request. Parts that read the same KV are neighbours.
    """
    chunks = -(-(q_lens * group) // LANES)
    counts = chunks * num_kv
    request = np.repeat(np.arange(len(q_lens)), counts)
    within = np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts)
    head, chunk = np.divmod(within, chunks[request])
    return request, head, chunk * LANES


def build_plan(
    req_to_token: torch.Tensor,
    request_rows: torch.Tensor,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    causal: bool,
) -> RaggedPlan:
    """Plan one forward over flat, request-major query rows.

    Parameters
    ----------
    req_to_token : int32 or int64 [requests of the pool, max context]
        KV slot of every position of every request.
    request_rows : int64 [R]
        Row of ``req_to_token`` for each request of the batch.
    q_lens, kv_lens : sequences of int, length R
        Query rows and KV tokens (those rows included) per request. A request
        with no query rows takes no part.
    causal : bool
        See `RaggedPlan.causal`.

    Returns
    -------
    RaggedPlan

    Raises
    ------
    ValueError
        If a request has more query rows than KV tokens.
    """
    for request, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        if not 0 <= q_len <= kv_len:
            raise ValueError(f"request {request}: {q_len} query rows do not fit in {kv_len} KV tokens")
    return RaggedPlan(list(q_lens), list(kv_lens), causal, req_to_token, request_rows)
