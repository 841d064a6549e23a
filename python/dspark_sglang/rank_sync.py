"""Rank 0 decides how much every tensor-parallel rank verifies; the others receive it.

Ranks that each searched for their own budget could choose different token counts, from timings that differ by rank,
and their collectives would wait for each other for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from sgl_dspark.planner.step import Decision


class RankSync:
    """Broadcasts small host tensors from rank 0 of a group.

    Parameters
    ----------
    group : torch.distributed process group of the host (gloo), or None
    world_size : int
        Of the group; with one rank nothing is sent.
    """

    def __init__(self, group: Any = None, world_size: int = 1) -> None:
        if world_size > 1 and group is None:
            raise ValueError("more than one rank needs a process group to agree in")
        self._group, self._world_size = group, world_size

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self._world_size == 1

    def agree(self, values: Tensor) -> Tensor:
        """Replace ``values`` by rank 0's, in place.

        Parameters
        ----------
        values : int64, on the host, of the same shape on every rank
        """
        if self._world_size > 1:
            source = torch.distributed.get_global_rank(self._group, 0)
            torch.distributed.broadcast(values, src=source, group=self._group)
        return values

    def decision(self, decision: Decision, requests: int) -> Decision:
        """Replace what every rank must agree on of ``decision`` by rank 0's: whether and whom to draft, and K.

        ``requests`` is R, which every rank knows.
        """
        if self._world_size == 1:
            return decision
        drafted = decision.drafted
        head = torch.tensor([decision.draft, -1 if decision.budget is None else decision.budget, drafted is not None])
        draft, budget, some = self.agree(head).tolist()
        rows = None
        if some:
            # Every rank has the same requests, whatever it would have decided about them.
            own = np.ones(requests, np.int64) if drafted is None else drafted.astype(np.int64)
            rows = self.agree(torch.from_numpy(own)).numpy().astype(bool)
        return replace(decision, draft=bool(draft), budget=None if budget < 0 else budget, drafted=rows)
