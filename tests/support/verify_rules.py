"""Verify-length rules for the oracle: from confidences [R, gamma] to verify_lens [R], anchor included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Lens = NDArray[np.int64]


def fixed(lens: Sequence[int]) -> Callable[[Floats], Lens]:
    return lambda confidences: np.array(lens)


def threshold(theta: float) -> Callable[[Floats], Lens]:
    """Cut at the first slot whose own confidence is below theta."""
    return lambda confidences: 1 + np.cumprod(confidences >= theta, axis=1).sum(1)


def _path(confidences: Floats) -> list[tuple[float, int, int]]:
    """Order (-survival, r, j); slots of survival 0 are never admitted."""
    survival = np.cumprod(confidences, axis=1)
    return sorted((-survival[r, j], r, j) for r, j in np.ndindex(*survival.shape) if survival[r, j] > 0)


def top(budget: int) -> Callable[[Floats], Lens]:
    """Admit the ``budget`` largest survivals, a number fixed from outside."""

    def rule(confidences: Floats) -> Lens:
        lens = np.ones(len(confidences), dtype=np.int64)
        for _, r, j in _path(confidences)[:budget]:
            lens[r] = j + 2
        return lens

    return rule


def throughput(sps: Sequence[float], *, early_stop: bool) -> Callable[[Floats], Lens]:
    """Follow Algorithm 1 with ``sps[B]``; without the early stop it is the retrospective search of Appendix A."""

    def rule(confidences: Floats) -> Lens:
        lens = np.ones(len(confidences), dtype=np.int64)
        best, tokens, verified = lens.copy(), float(len(lens)), len(lens)
        best_rate = tokens * sps[verified]
        for minus_survival, r, j in _path(confidences):
            lens[r], verified, tokens = j + 2, verified + 1, tokens - minus_survival
            if tokens * sps[verified] > best_rate:
                best_rate, best = tokens * sps[verified], lens.copy()
            elif early_stop:
                break
        return best

    return rule
