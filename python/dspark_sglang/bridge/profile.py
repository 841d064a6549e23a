"""Which budgets to try so that step times become known, from the steps that are served anyway.

Timing SGLang's worker on made-up batches would mean rebuilding what its scheduler prepares for each backend; real
steps have it all. While the times of a load are unknown, its first steps take turns between a few budgets. Which one
never depends on a token or a confidence, so it cannot bias what is emitted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from sgl_dspark.sps.fit import Probe

if TYPE_CHECKING:
    from sgl_dspark.sps.model import StepTimeModel

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
REPEATS = 3
# Steps that a load is profiled without one of them being timed (prefills in between, requests that come and go) before
# it is left alone for a while.
PATIENCE, REST = 12, 256


def load_of(requests: int) -> int:
    """Return the load that ``requests`` belong to: the next power of two."""
    return 1 << max(requests - 1, 0).bit_length()


class SelfProfile:
    """Asks for budgets and keeps what steps took, load by load.

    Parameters
    ----------
    gamma : int
        Drafts per block.
    tiers : int64 [N] or None
        Verify tokens that graphs exist for, ascending.
    known : StepTimeModel, optional
        Times of an earlier start; loads that it covers are not profiled again.
    """

    def __init__(self, gamma: int, tiers: np.ndarray | None = None, known: StepTimeModel | None = None) -> None:
        self.gamma, self._tiers = gamma, tiers
        self._samples: dict[int, dict[int, list[tuple[int, int, int, float]]]] = defaultdict(lambda: defaultdict(list))
        self._done: set[int] = set()
        self._untimed = self._steps = 0
        self._rests_until: dict[int, int] = defaultdict(int)
        self._before: list[Probe] = []
        if known is not None:
            largest = load_of(max(int(known.verify.sizes[-1]) // (gamma + 1), 1))
            self._done = {1 << i for i in range(largest.bit_length())}
            self._before = [probe for load in sorted(self._done) for probe in self._as_probes(known, load)]

    def _as_probes(self, known: StepTimeModel, load: int) -> list[Probe]:
        times = known.step_times(load, self.gamma, 0)
        return [Probe("verify", load, load + k, 0, float(times[k])) for k in self.budgets(load)]

    def budgets(self, requests: int) -> list[int]:
        """Return the budgets to try with R requests, one for each of `SHARES`: 0..R*gamma, filling graphs."""
        found = []
        for share in SHARES:
            tokens = requests + round(share * requests * self.gamma)
            if self._tiers is not None and tokens <= self._tiers[-1]:
                tokens = int(self._tiers[np.searchsorted(self._tiers, tokens)])
            found.append(min(tokens - requests, requests * self.gamma))
        return found

    def wanted(self, requests: int) -> int | None:
        """Return the budget to try in this step; None if the times of this load are known."""
        load = load_of(requests)
        self._steps += 1
        if load in self._done or self._steps < self._rests_until[load]:
            return None
        self._untimed += 1
        if self._untimed > PATIENCE:
            self._rests_until[load], self._untimed = self._steps + REST, 0
            return None
        samples = self._samples[load]
        # One after the other: a step is only told from its neighbours if these had the same budget.
        for share, budget in enumerate(self.budgets(requests)):
            if len(samples[share]) < REPEATS:
                return budget
        return None

    def note(self, requests: int, budget: int, context_tokens: int, seconds: float) -> bool:
        """Keep what a step took; True if that completes its load.

        Parameters
        ----------
        requests, budget : int
            R and K of a step whose neighbour before had the same.
        context_tokens : int
            Sum over its batch.
        seconds : float
        """
        load = load_of(requests)
        if load in self._done or seconds <= 0:
            return False
        samples = self._samples[load]
        for share, tried in enumerate(self.budgets(requests)):
            if tried == budget:
                samples[share].append((requests, budget, context_tokens, seconds))
                self._untimed = 0
        if any(len(samples[share]) < REPEATS for share in range(len(SHARES))):
            return False
        self._done.add(load)
        return True

    def probes(self) -> list[Probe]:
        """Return one probe for each number of requests and budget: medians, since the context grows with each step."""
        groups: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
        for samples in self._samples.values():
            for taken in samples.values():
                for requests, budget, context_tokens, seconds in taken:
                    groups[requests, budget].append((context_tokens, seconds))
        found = list(self._before)
        for (requests, budget), taken_there in sorted(groups.items()):
            contexts, seconds_there = zip(*taken_there, strict=True)
            context, seconds = int(np.median(contexts)), float(np.median(seconds_there))
            found.append(Probe("verify", requests, requests + budget, context, seconds))
        return found
