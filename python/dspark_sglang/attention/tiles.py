"""A plan's requests as padded tiles, each of which one dense call computes: the reference for every other executor.

Shape legend: R requests, T query tokens (flat, request-major), L KV tokens of a
tile, Q query rows of a tile, B requests of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

# A tile never holds more query rows of one request than this: it bounds the
# [Q * group, L] bias of a long prefill, and a causal tile reads no KV past its
# last row.
MAX_TILE_ROWS = 256
# Requests share a tile while the padded area stays within this factor of the
# useful one (plus a constant below which padding costs less than a kernel call).
PADDING_FACTOR = 1.5
PADDING_FREE_AREA = 4096
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


def make_tiles(
    q_lens: Sequence[int], kv_lens: Sequence[int], causal: bool, req_to_token: torch.Tensor, request_rows: torch.Tensor
) -> list[Tile]:
    """Put requests of like size together; requests whose sizes differ too much for padding to pay get their own tiles.

    Arguments as in `layout.build_plan`.
    """
    pieces = _pieces(q_lens, kv_lens, causal)
    total = sum(q_lens)
    return [_tile(group, total, req_to_token, request_rows, causal) for group in _group(pieces)] if pieces else []
