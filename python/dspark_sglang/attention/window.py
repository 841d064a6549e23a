"""Verification whose lengths only the device knows: rows of fixed number, mapped by gathers.

The draft's confidences decide how many drafts of each request are verified, on the device. A paged kernel is planned
on the host, so it is planned for the most rows that each request can have, which the host knows; the model's other
layers run over the flat tokens alone. Two gathers a layer go from one form to the other.

Shape legend: S request slots, W = gamma + 1 columns, N planned rows, T flat tokens of the tier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dspark_sglang.attention.tiles import PADDING_SLOT

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FlatTokens:
    """Which token of which request each flat row of a tier is.

    Attributes
    ----------
    owners, depths : int64 [T]
        Request slot, and drafts before the row; 0 for padding rows.
    real : bool [T]
        False for the tail that only fills the tier.
    firsts : int64 [S]
        First flat row of each request slot.
    """

    owners: Tensor
    depths: Tensor
    real: Tensor
    firsts: Tensor

    @classmethod
    def of(cls, verify_lens: Tensor, counting: Tensor) -> FlatTokens:
        """Lay out ``verify_lens`` int64 [S] over ``counting`` int64 [T] (0, 1, ..., T - 1), which must hold their sum.

        Everything stays on the device; shapes depend on the tier alone.
        """
        ends = verify_lens.cumsum(0)
        real = counting < ends[-1]
        firsts = ends - verify_lens
        owners = torch.where(real, torch.searchsorted(ends, counting, right=True), 0)
        return cls(owners, torch.where(real, counting - firsts[owners], 0), real, firsts)

    def take(self, values: Tensor, padding: int) -> Tensor:
        """Select ``values`` [S, W] of each flat row, ``padding`` for the tail: [T]."""
        return torch.where(self.real, values[self.owners, self.depths], padding)


@dataclass(frozen=True)
class PlannedRows:
    """Which token each planned row is, and where each flat row's result will be.

    Attributes
    ----------
    spread : int64 [N]
        Flat row that a planned row computes. Rows past a request's length repeat its last one, keys and values
        included, so that a kernel never reads a slot that nobody has written.
    pack : int64 [T]
        Planned row of each flat row; the tail repeats row 0.
    """

    spread: Tensor
    pack: Tensor

    @classmethod
    def of(
        cls, tokens: FlatTokens, verify_lens: Tensor, row_owners: Tensor, row_depths: Tensor, row_firsts: Tensor
    ) -> PlannedRows:
        """Map planned rows to flat ones and back.

        Parameters
        ----------
        tokens : FlatTokens
        verify_lens : int64 [S]
            At most the rows that are planned for each request.
        row_owners, row_depths : int64 [N]
            Request slot of each planned row, and drafts before it. Rows beyond the plan's own hold 0 and 0.
        row_firsts : int64 [S]
            First planned row of each request slot.
        """
        last = (verify_lens[row_owners] - 1).clamp(min=0)
        spread = tokens.firsts[row_owners] + torch.minimum(row_depths, last)
        pack = torch.where(tokens.real, row_firsts[tokens.owners] + tokens.depths, 0)
        return cls(spread, pack)


def planned_slots(slots: Tensor, row_owners: Tensor, row_depths: Tensor, rows: Tensor, counting: Tensor) -> Tensor:
    """Give the KV slot that each planned row writes: int64 [N].

    Parameters
    ----------
    slots : int64 [S, W]
    row_owners, row_depths : int64 [N]
    rows : int64 scalar
        Planned rows in use, on the device. The rest write the padding slot.
    counting : int64 [N]
        0, 1, ..., N - 1.
    """
    return torch.where(counting < rows, slots[row_owners, row_depths], PADDING_SLOT)
