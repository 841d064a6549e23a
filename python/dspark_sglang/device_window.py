"""What a verification reads whose lengths only the device knows; beside `verify.VerifyWindow`, which the host knows.

Shape legend: S request slots (R of them taken), W = gamma + 1 columns, N planned rows, T flat tokens of the tier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sglang.attention.cuda import RowMap
from dspark_sglang.attention.tiles import PADDING_SLOT
from dspark_sglang.attention.window import FlatTokens, PlannedRows, planned_slots
from dspark_sglang.graphs import sent_to
from dspark_sglang.verify import VerifyInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True)
class DeviceWindow:
    """What of every request's block one target verification reads.

    Attributes
    ----------
    verify_lens : int64 [R]
        Tokens verified, anchor included.
    positions, slots : int64 [R, W]
        Of the anchor and each draft.
    tokens : FlatTokens
        Of T rows; those past the sum of ``verify_lens`` fill the tier.
    """

    verify_lens: Tensor
    positions: Tensor
    slots: Tensor
    tokens: FlatTokens

    def pack(self, values: Tensor) -> Tensor:
        """Select the rows of ``[R, W]`` values, flat and request-major: ``[T]``; 0, a slot of nobody, for the tail."""
        return self.tokens.take(values, PADDING_SLOT)

    def per_row(self, values: Tensor, rows: int) -> Tensor:
        """Repeat each request's ``values`` [R] over its rows: [T]. The tail gets those of the first."""
        del rows
        return values[self.tokens.owners]

    def unpack(self, rows: Tensor) -> Tensor:
        """Spread rows ``[T, ...]`` over the full window ``[R * W, ...]``; the rest is zero."""
        requests, width = self.positions.shape
        depths = torch.arange(width, device=rows.device)
        own = depths < self.verify_lens.unsqueeze(1)
        places = torch.where(own, self.tokens.firsts[:requests].unsqueeze(1) + depths, 0).view(-1)
        return torch.where(own.view(-1, *[1] * (rows.dim() - 1)), rows[places], 0)


@dataclass
class VerifyInputs:
    """What a verification starts from: a step's own tensors, or buffers that a graph reads.

    Attributes
    ----------
    anchors : int64 [S]
    drafts : int64 [S, W - 1]
    verify_lens : int64 [S]
        0 for padding request slots.
    positions, slots : int64 [S, W]
    row_owners, row_depths : int64 [N]
        Request slot of each planned row, and drafts before it; zeros behind those in use.
    row_firsts : int64 [S]
        First planned row of each request slot.
    rows : int64 scalar
        Planned rows in use.
    """

    anchors: Tensor
    drafts: Tensor
    verify_lens: Tensor
    positions: Tensor
    slots: Tensor
    row_owners: Tensor
    row_depths: Tensor
    row_firsts: Tensor
    rows: Tensor

    def window(self, tokens: FlatTokens, requests: int) -> DeviceWindow:
        """Return the window of the first ``requests`` request slots."""
        return DeviceWindow(self.verify_lens[:requests], self.positions[:requests], self.slots[:requests], tokens)


@dataclass(frozen=True)
class FlatVerify:
    """The flat rows of one verification.

    Attributes
    ----------
    tokens : FlatTokens
    ids, positions, slots : int64 [T]
        Of each row; the tail has token 0 at position 0 and writes the padding slot.
    row_map : RowMap
    """

    tokens: FlatTokens
    ids: Tensor
    positions: Tensor
    slots: Tensor
    row_map: RowMap

    @classmethod
    def of(cls, inputs: VerifyInputs, counting: Tensor, tier: int) -> FlatVerify:
        """Lay the rows out on the device.

        Parameters
        ----------
        inputs : VerifyInputs
        counting : int64 [at least T and N]
            0, 1, 2, ...
        tier : int
            T, at least the sum of ``verify_lens``.
        """
        tokens = FlatTokens.of(inputs.verify_lens, counting[:tier])
        owners, depths = inputs.row_owners, inputs.row_depths
        rows = PlannedRows.of(tokens, inputs.verify_lens, owners, depths, inputs.row_firsts)
        written = planned_slots(inputs.slots, owners, depths, inputs.rows, counting[: len(owners)])
        ids = tokens.take(torch.cat([inputs.anchors.unsqueeze(1), inputs.drafts], 1), 0)
        positions, slots = tokens.take(inputs.positions, 0), tokens.take(inputs.slots, PADDING_SLOT)
        return cls(tokens, ids, positions, slots, RowMap(rows, written))

    def verify_input(self, width: int, bounds: Sequence[int], prefix_lens: Sequence[int]) -> VerifyInput:
        """Describe it to SGLang: ``bounds`` are the rows that are planned for each request."""
        made = VerifyInput.flat(self.ids, self.positions, width, list(bounds), list(prefix_lens))
        made.row_map = self.row_map
        return made


def planned_row_index(bounds: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Give every planned row its place, of requests that have ``bounds`` rows each.

    Returns
    -------
    owners, depths : int64 [sum of bounds]
    firsts : int64 [R]
        All on ``device``, copied without waiting for it.
    """
    counts = np.array(bounds, np.int64)
    firsts = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(len(counts)), counts)
    depths = np.arange(len(owners)) - firsts[owners]
    joined = sent_to(torch.from_numpy(np.concatenate([owners, depths, firsts])), device)
    return joined[: len(owners)], joined[len(owners) : 2 * len(owners)], joined[2 * len(owners) :]
