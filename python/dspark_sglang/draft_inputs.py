"""Buffers that a draft graph reads: made once, filled at each step, never moved.

Shape legend: S request slots, G = gamma, W = gamma + 1, F = target features of a token.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang.graphs import staged

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from sgl_dspark.config import DrafterConfig

# Kinds of requests that have a calibration of their own: greedy, sampled, adjusted.
KINDS = 3


@dataclass(frozen=True)
class Committed:
    """Tokens whose context KV is to be written.

    Attributes
    ----------
    features : float [S * W, F]
    positions, slots : int64 [S * W]
        Rows that are not to be written have slot 0, the padding slot.
    """

    features: Tensor
    positions: Tensor
    slots: Tensor


@dataclass
class DraftInputs:
    """One tier's view of the buffers, or all of them.

    Attributes
    ----------
    anchors, prefix_lens : int64 [S]
        Last committed token of each request, and tokens before it.
    slots : int64 [S, G]
        Where the block's own keys and values go.
    temperatures : fp32 [S]
        0 for greedy requests.
    kinds, room, least : int64 [S]
        Calibration of each request; drafts that may be verified, 0..G; drafts that are verified in any case.
    budget, seed, step : int64 scalar
        K; of the random numbers, of which ``step`` counts up by itself.
    inverse_temperatures, biases : fp32 [KINDS, G]
        Of the confidence; updated in place.
    places : int64 [G]
        0, 1, ..., G - 1.
    committed : Committed
        Of the step before.
    committed_rows : int
        How many rows of it wait.
    """

    anchors: Tensor
    prefix_lens: Tensor
    slots: Tensor
    temperatures: Tensor
    kinds: Tensor
    room: Tensor
    least: Tensor
    budget: Tensor
    seed: Tensor
    step: Tensor
    inverse_temperatures: Tensor
    biases: Tensor
    places: Tensor
    committed: Committed
    committed_rows: int = 0

    @classmethod
    def make(
        cls, config: DrafterConfig, requests: int, dtype: torch.dtype, device: torch.device, seed: int
    ) -> DraftInputs:
        """Allocate the buffers of ``requests`` request slots; features have ``dtype``."""
        gamma, rows = config.gamma, requests * (config.gamma + 1)

        def ints(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device)

        features = torch.zeros((rows, config.num_features), dtype=dtype, device=device)
        return cls(
            anchors=ints(requests),
            prefix_lens=ints(requests),
            slots=ints(requests, gamma),
            temperatures=floats(requests),
            kinds=ints(requests),
            room=ints(requests),
            least=ints(requests),
            budget=ints(),
            seed=ints(value=seed),
            step=ints(),
            inverse_temperatures=floats(KINDS, gamma).fill_(1.0),
            biases=floats(KINDS, gamma),
            places=torch.arange(gamma, device=device),
            committed=Committed(features, ints(rows), ints(rows)),
        )

    @property
    def requests(self) -> int:
        """Request slots S."""
        return self.anchors.numel()

    @property
    def device(self) -> torch.device:
        """Where the buffers are."""
        return self.anchors.device

    def buffers(self) -> list[Tensor]:
        """List them all: what a captured draft may read besides weights, pools and the attention's plan."""
        own = [getattr(self, f.name) for f in fields(self) if f.name not in ("committed", "committed_rows")]
        return [*own, self.committed.features, self.committed.positions, self.committed.slots]

    def tier(self, requests: int) -> DraftInputs:
        """Return views of the first ``requests`` request slots."""
        rows = requests * (self.slots.shape[1] + 1)
        committed = self.committed
        changes: dict[str, Any] = {name: getattr(self, name)[:requests] for name in _PER_REQUEST}
        shared = {name: getattr(self, name) for name in _SHARED}
        views = Committed(committed.features[:rows], committed.positions[:rows], committed.slots[:rows])
        return DraftInputs(**changes, **shared, committed=views)

    def load(
        self,
        *,
        anchors: Tensor,
        prefix_lens: Tensor,
        slots: Tensor,
        temperatures: Tensor,
        kinds: Tensor,
        room: Tensor,
        least: Tensor,
        budget: int,
    ) -> None:
        """Copy one step's requests in; tensors are as the attributes, of R requests, on the host or the device."""
        given = {
            "anchors": anchors,
            "prefix_lens": prefix_lens,
            "slots": slots,
            "temperatures": temperatures,
            "kinds": kinds,
            "room": room,
            "least": least,
        }
        for name, values in given.items():
            getattr(self, name)[: len(values)].copy_(staged(values, self.device), non_blocking=True)
        self.budget.fill_(budget)

    def pad(self, requests: int, tier: int) -> None:
        """Make the request slots from ``requests`` to ``tier`` harmless: token 0, no drafts, the padding slot."""
        if requests < tier:
            for name in _PER_REQUEST:
                getattr(self, name)[requests:tier].zero_()

    def calibrate(self, inverse_temperatures: np.ndarray, biases: np.ndarray) -> None:
        """Update the confidence's calibration in place: fp32 [KINDS, G] each; graphs go on reading the same memory."""
        for buffer, values in ((self.inverse_temperatures, inverse_temperatures), (self.biases, biases)):
            buffer.copy_(staged(torch.from_numpy(values), self.device), non_blocking=True)

    def commit(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Keep what the next draft writes first.

        Parameters
        ----------
        features : float [n, F]
        positions, slots : int64 [n]
            n at most S * W.

        Raises
        ------
        RuntimeError
            If what was kept before has not been written.
        """
        if self.committed_rows:
            raise RuntimeError("the last step's context KV was not written; flush before another step is committed")
        rows = len(positions)
        committed = self.committed
        committed.features[:rows].copy_(features)
        committed.positions[:rows].copy_(positions)
        committed.slots[:rows].copy_(slots)
        self.committed_rows = rows


_PER_REQUEST = ("anchors", "prefix_lens", "slots", "temperatures", "kinds", "room", "least")
_SHARED = ("budget", "seed", "step", "inverse_temperatures", "biases", "places")
