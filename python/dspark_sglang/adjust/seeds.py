"""Requests with a seed: which they are, and the uniforms of their next positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgl_dspark.sampling.seeded import seeded_uniforms


@dataclass(frozen=True)
class SeededRequests:
    """Seeded requests among the R of a batch.

    Attributes
    ----------
    places : int64 [n], on the host
        Places in the batch, ascending.
    seeds : int64 [n]
    positions : int64 [n]
        Position of the next token.
    """

    places: Tensor
    seeds: Tensor
    positions: Tensor

    def uniforms(self, width: int) -> Tensor:
        """Give the uniforms of the next ``width`` positions, fp64 [n, width]."""
        ahead = torch.arange(width, device=self.positions.device)
        return seeded_uniforms(self.seeds.unsqueeze(1), self.positions.unsqueeze(1) + ahead)

    def mask(self, requests: int) -> Tensor:
        """Tell which of R requests they are, bool [R]."""
        found = torch.zeros(requests, dtype=torch.bool)
        found[self.places] = True
        return found.to(self.positions.device)

    def select(self, requests: Tensor) -> SeededRequests | None:
        """Give those among ``requests`` (int64 [n'], ascending, on the host), with places in that list."""
        kept = torch.isin(self.places, requests)
        if not kept.any():
            return None
        on_device = kept.to(self.positions.device)
        places = torch.searchsorted(requests, self.places[kept])
        return SeededRequests(places, self.seeds[on_device], self.positions[on_device])
