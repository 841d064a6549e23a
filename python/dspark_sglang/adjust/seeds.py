"""Requests with a seed: which they are, the uniforms of their next positions, and the seeds of further answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.sampling.seeded import GOLDEN, mixed, seeded_uniforms


def following(seed: int) -> int:
    """Give the seed of the next of several answers: another one for each seed, all within int64."""
    # Twice, since positions are told apart by one mix of the seed plus multiples of the same constant.
    return int(mixed(mixed(torch.tensor(seed, dtype=torch.int64)) + GOLDEN))


def move_on(sampling: Any) -> None:
    """Give the answer that is sent next the following seed, where several are asked of one prompt.

    SGLang sends one ``SamplingParams`` object once for each of the ``n`` answers, one after another.
    """
    if sampling.n > 1 and sampling.sampling_seed is not None:
        sampling.sampling_seed = following(sampling.sampling_seed)


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
