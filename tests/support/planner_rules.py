"""The shipped planner as rules for the exact oracle, random rounds for it, and slow references of its parts."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from sgl_dspark.planner.allocate import admit, threshold_lens
from sgl_dspark.planner.capacity import choose_budget
from sgl_dspark.planner.prefix import early_stop
from sgl_dspark.sampling.exact import Round

Floats = NDArray[np.float64]
Lens = NDArray[np.int64]
Rule = Callable[[Floats], Lens]


def survival32(confidences: Floats) -> NDArray[np.float32]:
    return np.cumprod(confidences.astype(np.float32), axis=1)


def shipped_threshold(theta: float) -> Rule:
    return lambda confidences: 1 + threshold_lens(confidences.astype(np.float32), theta)


def shipped_early_stop(step_times: Floats) -> Rule:
    return lambda confidences: 1 + early_stop(survival32(confidences), step_times)[1]


def shipped_admit(budget: int) -> Rule:
    return lambda confidences: 1 + admit(survival32(confidences), budget)


def retrospective(step_times: Floats) -> Rule:
    """Appendix A: the global search run on the very confidences that it ranks. A control that must fail."""

    def rule(confidences: Floats) -> Lens:
        survival = survival32(confidences)
        return 1 + admit(survival, choose_budget(survival, step_times).budget)

    return rule


def random_round(rng: np.random.Generator, vocab_size: int, gamma: int) -> Round:
    """One request with arbitrary prefix-dependent laws and confidences; a third of the confidences are 0, 1 or tied."""

    def laws(rows: int) -> torch.Tensor:
        return torch.from_numpy(rng.dirichlet(np.ones(vocab_size), size=rows))

    def confidences(rows: int) -> torch.Tensor:
        special = rng.choice([0.0, 0.5, 1.0], size=rows)
        return torch.from_numpy(np.where(rng.random(rows) < 1 / 3, special, rng.random(rows)))

    return Round(
        draft=tuple(laws(vocab_size**j) for j in range(gamma)),
        target=tuple(laws(vocab_size**i) for i in range(gamma + 1)),
        confidences=tuple(confidences(vocab_size**j) for j in range(gamma)),
    )


def lazy_early_stop(survival: Floats, step_times: Floats) -> Lens:
    """Algorithm 1 as a heap over frontiers: it reads slot j of a request only after slots before it were admitted."""
    requests, gamma = survival.shape
    lens = np.zeros(requests, dtype=np.int64)
    frontier = [(-survival[r, 0], r, 0) for r in range(requests) if gamma and survival[r, 0] > 0]
    heapq.heapify(frontier)
    tokens, verified = float(requests), 0
    while frontier:
        minus_survival, r, j = heapq.heappop(frontier)
        rate = tokens / step_times[verified]
        tokens, verified = tokens - float(minus_survival), verified + 1
        if not tokens / step_times[verified] > rate:
            break
        lens[r] = j + 1
        if j + 1 < gamma and survival[r, j + 1] > 0:
            heapq.heappush(frontier, (-survival[r, j + 1], r, j + 1))
    return lens
