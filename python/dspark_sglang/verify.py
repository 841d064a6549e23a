"""What one ragged target verification reads and writes.

Shape legend: R requests, W = gamma + 1 columns, T = sum of verify_lens rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from dspark_sglang import compat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dspark_sglang.attention.cuda import RowMap


@dataclass(frozen=True)
class BlockLayout:
    """Where the anchor and the drafts of every request go, before it is known how many are verified.

    Attributes
    ----------
    prefix_lens : list of int, length R
        Committed tokens, which is also the anchor's position.
    positions, slots : int64 [R, W]
        Position (below the context length) and KV slot of the anchor and of each draft.
    """

    prefix_lens: list[int]
    positions: Tensor
    slots: Tensor

    @classmethod
    def build(
        cls,
        *,
        seq_lens: Tensor,
        prefix_lens_cpu: Tensor,
        req_pool_indices: Tensor,
        req_to_token: Tensor,
        offsets: Tensor,
        max_positions: int,
    ) -> BlockLayout:
        """Look the slots up that SGLang reserved.

        Parameters
        ----------
        seq_lens, prefix_lens_cpu : int64 [R]
            Committed lengths, on the device and on the host.
        req_pool_indices : int64 [R]
            Row of ``req_to_token`` of each request.
        req_to_token : int [requests, max context]
            Slots that SGLang reserved, past the committed length too.
        offsets : int64 [W]
            0..W-1.
        max_positions : int
            Rows of the target's rotary table: the context length. Positions are cut
            there; only rows past a request's end lie beyond, whose results are dropped.
        """
        positions = seq_lens.unsqueeze(1) + offsets
        # Columns past the table's end are never verified; clamping keeps the lookup legal.
        columns = positions.clamp(max=req_to_token.shape[1] - 1)
        slots = req_to_token[req_pool_indices.unsqueeze(1), columns].long()
        return cls(prefix_lens_cpu.tolist(), positions.clamp(max=max_positions - 1), slots)

    def window(self, verify_lens_cpu: Tensor) -> VerifyWindow:
        """Choose how much of it is verified.

        Parameters
        ----------
        verify_lens_cpu : int64 [R], on the host
            In 1..W, anchor included.
        """
        device, width = self.positions.device, self.positions.shape[1]
        lens = verify_lens_cpu.tolist()
        indptr = torch.zeros(len(lens) + 1, dtype=torch.int64)
        torch.cumsum(verify_lens_cpu, 0, out=indptr[1:])
        total = sum(lens)
        if total == len(lens) * width:
            packed = None
        elif total == len(lens):
            packed = torch.arange(0, total * width, width, device=device)
        else:
            rows = torch.arange(width).unsqueeze(0) < verify_lens_cpu.unsqueeze(1)
            packed = rows.view(-1).nonzero().view(-1).to(device)
        return VerifyWindow(
            self.prefix_lens,
            verify_lens_cpu.to(device),
            lens,
            self.positions,
            self.slots,
            indptr.to(device),
            packed,
        )


@dataclass
class VerifyWindow:
    """What of every request's block one target verification reads.

    Attributes
    ----------
    prefix_lens : list of int, length R
        Committed tokens, which is also the anchor's position.
    verify_lens : int64 [R]
        Tokens verified, anchor included, in 1..W.
    verify_lens_list : list of int
        The same on the host.
    positions, slots : int64 [R, W]
        See `BlockLayout`.
    qo_indptr : int64 [R + 1]
        First flat row of each request, then T.
    packed : int64 [T] or None
        Flat index into ``[R, W]`` of each verified row; None when all of it is.
    """

    prefix_lens: list[int]
    verify_lens: Tensor
    verify_lens_list: list[int]
    positions: Tensor
    slots: Tensor
    qo_indptr: Tensor
    packed: Tensor | None

    @cached_property
    def first_rows(self) -> list[int]:
        """First flat row of each request on the host, then T: length R + 1."""
        return [0, *itertools.accumulate(self.verify_lens_list)]

    def row_span(self, place: int) -> tuple[int, int]:
        """Return the first flat row of a request and the one past its last."""
        return self.first_rows[place], self.first_rows[place + 1]

    def rows_of(self, places: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """List the verified rows of some requests, on the host.

        Returns
        -------
        rows, owners, depths : int64 [M]
            Flat rows, index into ``places``, and drafts before each row.
        """
        lens = torch.tensor([self.verify_lens_list[p] for p in places])
        firsts = torch.tensor([self.first_rows[p] for p in places])
        owners = torch.repeat_interleave(torch.arange(len(lens)), lens)
        depths = torch.arange(len(owners)) - (lens.cumsum(0) - lens)[owners]
        return firsts[owners] + depths, owners, depths

    def pack(self, values: Tensor) -> Tensor:
        """Select the verified rows of ``[R, W]`` values, flat and request-major: ``[T]``."""
        flat = values.reshape(-1)
        return flat if self.packed is None else flat.index_select(0, self.packed)

    def per_row(self, values: Tensor, rows: int) -> Tensor:
        """Repeat each request's ``values`` [R] over its ``rows`` verified rows in all: [T]."""
        return torch.repeat_interleave(values, self.verify_lens, output_size=rows)

    def unpack(self, rows: Tensor) -> Tensor:
        """Spread verified rows ``[T, ...]`` over the full window ``[R * W, ...]``; the rest is zero."""
        if self.packed is None:
            return rows
        full = rows.new_zeros((self.positions.numel(), *rows.shape[1:]))
        return full.index_copy_(0, self.packed, rows)


class VerifyInput(compat.DFlashVerifyInput):
    """SGLang's verify input, plus what our attention plan needs on the host."""

    verify_lens_cpu: list[int]
    prefix_lens_cpu: list[int]
    # Set where the device alone knows the lengths; `verify_lens_cpu` then has the most that each can be.
    row_map: RowMap | None

    @classmethod
    def of(cls, tokens: Tensor, window: VerifyWindow) -> VerifyInput:
        """Describe the verification of flat ``tokens`` [T] laid out by ``window``."""
        positions = window.pack(window.positions)
        return cls.flat(tokens, positions, window.positions.shape[1], window.verify_lens_list, window.prefix_lens)

    @classmethod
    def flat(
        cls, tokens: Tensor, positions: Tensor, width: int, verify_lens: list[int], prefix_lens: list[int]
    ) -> VerifyInput:
        """Describe flat ``tokens`` and ``positions`` [T] of requests that may verify ``width`` tokens each."""
        made = cls(
            draft_token=tokens,
            positions=positions,
            draft_token_num=width,
            capture_hidden_mode=compat.CaptureHiddenMode.FULL,
        )
        made.verify_lens_cpu = verify_lens
        made.prefix_lens_cpu = prefix_lens
        made.row_map = None
        return made
