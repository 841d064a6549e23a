"""The ragged plan of one forward: which query rows read which KV slots.

Built once a step on the host, executed once a layer. A plan names tokens, not
layers, so the target's layers and the draft's layers execute the same type.

Shape legend: R requests, T query tokens (flat, request-major), L KV tokens of a
request, Q query rows of a tile, B requests of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

# A tile never holds more query rows of one request than this: it bounds the
# [Q * group, L] bias of a long prefill, and a causal tile reads no KV past its
# last row.
MAX_TILE_ROWS = 256
# Requests share a tile while the padded area stays within this factor of the
# useful one (plus a constant below which padding costs less than a kernel call).
PADDING_FACTOR = 1.5
PADDING_FREE_AREA = 4096
# (query, head) rows that the kernel computes together.
LANES = 16
# SGLang never hands this slot out.
PADDING_SLOT = 0


@dataclass
class Tile:
    """B requests whose attention runs as one dense call.

    Attributes
    ----------
    rows : int64 [B * Q] or None
        Query rows of the tile, request-major; short requests repeat their last
        row. None when the tile is exactly the flat rows in order.
    slots : int64 [B * L]
        KV slot of every (request, position); the padding slot past a request's
        own KV, which is masked.
    last_visible : int64 [B, Q] or None
        Last KV position that a row sees; None when every row sees all L.
    keep : int64 [n] or None
        Which of the B * Q padded rows are real; None when all are.
    """

    num_requests: int
    num_rows: int
    kv_len: int
    rows: torch.Tensor | None
    slots: torch.Tensor
    last_visible: torch.Tensor | None
    keep: torch.Tensor | None
    _bias: dict[int, torch.Tensor] = field(default_factory=dict)

    def bias(self, group: int) -> torch.Tensor | None:
        """Return the additive fp32 mask ``[B, 1, Q * group, L]``, or None if nothing is hidden.

        ``group`` query heads share a KV head and are laid out as extra query rows
        (row-major over (Q, group)). Cached, since every layer of a model asks for
        the same one.
        """
        if self.last_visible is None:
            return None
        bias = self._bias.get(group)
        if bias is None:
            positions = torch.arange(self.kv_len, device=self.last_visible.device)
            hidden = positions > self.last_visible.unsqueeze(-1)
            bias = torch.zeros(hidden.shape, device=hidden.device)
            bias.masked_fill_(hidden, float("-inf"))
            bias = bias.repeat_interleave(group, dim=1).unsqueeze(1)
            self._bias[group] = bias
        return bias


@dataclass(frozen=True)
class Gathers:
    """Indices of a plan of several tiles: one gather each for queries, keys, values and results, not one per tile.

    Attributes
    ----------
    rows : int64 [sum of B * Q]
        Query row of each padded row, tile after tile.
    slots : int64 [sum of B * L]
        KV slots, tile after tile.
    back : int64 [T]
        Where among the padded rows each query row's result is.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    back: torch.Tensor

    @classmethod
    def of(cls, tiles: Sequence[Tile], num_rows: int) -> Gathers:
        """Join the tiles' own indices."""
        every = [tile.rows for tile in tiles if tile.rows is not None]
        rows = torch.cat(every)
        back = torch.empty(num_rows, dtype=torch.int64, device=rows.device)
        start = 0
        for tile, own in zip(tiles, every, strict=True):
            real = torch.arange(own.numel(), device=own.device) if tile.keep is None else tile.keep
            back[own.index_select(0, real)] = real + start
            start += own.numel()
        return cls(rows, torch.cat([tile.slots for tile in tiles]), back)


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
        pieces = _pieces(self.q_lens, self.kv_lens, self.causal)
        if not pieces:
            return []
        total = self.num_rows
        return [_tile(g, total, self.req_to_token, self.request_rows, self.causal) for g in _group(pieces)]

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


@dataclass(frozen=True)
class _Piece:
    """Consecutive query rows of one request, and the KV they can see."""

    request: int
    row: int
    first: int
    num_rows: int
    kv_len: int


def _pieces(q_lens: Sequence[int], kv_lens: Sequence[int], causal: bool) -> list[_Piece]:
    pieces = []
    row = 0
    for request, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        for start in range(0, q_len, MAX_TILE_ROWS):
            count = min(MAX_TILE_ROWS, q_len - start)
            first = kv_len - q_len + start
            visible = first + count if causal else kv_len
            pieces.append(_Piece(request, row + start, first, count, visible))
        row += q_len
    return pieces


def _group(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Put pieces of like size together, longest first, bounding the padding."""
    if len(pieces) == 1:
        return [pieces]
    groups: list[list[_Piece]] = []
    useful = max_rows = max_kv = 0
    for piece in sorted(pieces, key=lambda p: (-p.num_rows, -p.kv_len)):
        area = piece.num_rows * piece.kv_len
        rows, kv = max(max_rows, piece.num_rows), max(max_kv, piece.kv_len)
        if groups and (len(groups[-1]) + 1) * rows * kv <= PADDING_FACTOR * (useful + area) + PADDING_FREE_AREA:
            groups[-1].append(piece)
            useful, max_rows, max_kv = useful + area, rows, kv
        else:
            groups.append([piece])
            useful, max_rows, max_kv = area, piece.num_rows, piece.kv_len
    for group in groups:
        group.sort(key=lambda p: p.row)
    return groups


def _tile(
    group: list[_Piece],
    total_rows: int,
    req_to_token: torch.Tensor,
    request_rows: torch.Tensor,
    causal: bool,
) -> Tile:
    num_rows = max(p.num_rows for p in group)
    kv_len = max(p.kv_len for p in group)
    uniform = all(p.num_rows == num_rows for p in group)
    in_order = uniform and len(group) * num_rows == total_rows
    device = req_to_token.device
    offsets = torch.arange(num_rows)
    rows = keep = None
    counts = torch.tensor([p.num_rows for p in group])
    if not in_order:
        clamped = torch.minimum(offsets, counts.unsqueeze(1) - 1)
        rows = (torch.tensor([p.row for p in group]).unsqueeze(1) + clamped).view(-1).to(device)
    if not uniform:
        keep = (offsets < counts.unsqueeze(1)).view(-1).nonzero().view(-1).to(device)
    if all(p.request == i for i, p in enumerate(group)) and len(group) == request_rows.numel():
        table = req_to_token[request_rows, :kv_len]
    else:
        members = torch.tensor([p.request for p in group], device=device)
        table = req_to_token[request_rows[members], :kv_len]
    if any(p.kv_len != kv_len for p in group):
        # Past a request's own KV its row names slots that others hold now. Masking their
        # scores is not enough, since 0 * inf is NaN: read the padding slot instead.
        own = torch.tensor([p.kv_len for p in group], device=device).unsqueeze(1)
        table = table.masked_fill(torch.arange(kv_len, device=device) >= own, PADDING_SLOT)
    last_visible = None
    if causal and num_rows > 1:
        first = torch.tensor([p.first for p in group]).unsqueeze(1)
        last_visible = (first + torch.minimum(offsets, counts.unsqueeze(1) - 1)).to(device)
    elif any(p.kv_len != kv_len for p in group):
        own = torch.tensor([p.kv_len - 1 for p in group]).unsqueeze(1)
        last_visible = own.expand(-1, num_rows).to(device)
    return Tile(len(group), num_rows, kv_len, rows, table.reshape(-1).long(), last_visible, keep)


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
