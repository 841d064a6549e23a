"""How many drafts to verify in a step: the unconstrained search for the verify budget K (Sec. 5.2).

Shape letters: R requests, G = gamma slots. K counts drafts only; a step verifies R + K tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]
Floats64 = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a step is expected to bring.

    Attributes
    ----------
    budget : int
        K, drafts to verify; anchors excluded.
    expected_tokens : float
        R plus the survival of the admitted drafts: tokens emitted, bonus included (Algorithm 1's tau).
    step_time_s : float
        Seconds of the step, at the graph tier that it runs at where there are tiers.
    """

    budget: int
    expected_tokens: float
    step_time_s: float

    @property
    def rate(self) -> float:
        """Expected tokens a second (Theta)."""
        return self.expected_tokens / self.step_time_s


def choose_budget(
    survival: Floats32, step_times: Floats64, *, tiers: Ints | None = None, limit: int | None = None
) -> Capacity:
    """Choose the K with the highest expected tokens per second, over all K (Sec. 5.2).

    Without an early stop this is lossless only if ``survival`` tells nothing about the drafts that are being ranked:
    the planner passes what was published at least two decode steps ago.

    Parameters
    ----------
    survival : float32 [R, G]
        In [0, 1], without NaN. Zeros are never admitted.
    step_times : float64 [R * G + 1]
        Seconds of a whole step that verifies R + k tokens, positive.
    tiers : int64 [N], optional
        Ascending verify-token counts at which a graph exists. K is then priced at the tier it runs at and grown to
        fill it, since padding costs as much as drafts; above the last tier a step runs at its own size.
    limit : int, optional
        Upper bound of K.

    Returns
    -------
    Capacity
        Of equally good K the smallest.

    Raises
    ------
    ValueError
        If ``step_times`` has another length: it was made for another batch.
    """
    if step_times.size != survival.size + 1:
        raise ValueError(f"step_times has {step_times.size} entries for {survival.size} slots: pass R * gamma + 1.")
    return search(np.sort(survival, axis=None)[::-1], len(survival), step_times, tiers=tiers, limit=limit)


def search(
    descending: Floats32, requests: int, step_times: Floats64, *, tiers: Ints | None = None, limit: int | None = None
) -> Capacity:
    """Do the work of :func:`choose_budget` on survival that is already sorted.

    Parameters
    ----------
    descending : float32 [R * G]
        Survival of all slots, largest first.
    requests : int
        R.
    step_times, tiers, limit
        See :func:`choose_budget`.
    """
    most = descending.size if limit is None else max(min(limit, descending.size), 0)
    if most and not descending[most - 1] > 0:
        most = int(np.count_nonzero(descending[:most] > 0))
    # fp64 sums: R + K reaches thousands, where fp32 would lose the small survivals that decide about a tier.
    tokens = np.empty(most + 1)
    tokens[0] = requests
    tokens[1:] = descending[:most]
    np.add.accumulate(tokens, out=tokens)
    if tiers is None or not tiers.size:
        best = int((tokens / step_times[: most + 1]).argmax())
        return Capacity(best, float(tokens[best]), float(step_times[best]))
    budgets, priced_at = _tier_ends(requests, most, descending.size, tiers)
    times = step_times[priced_at]
    best = int((tokens[budgets] / times).argmax())
    budget = int(budgets[best])
    return Capacity(budget, float(tokens[budget]), float(times[best]))


def _tier_ends(requests: int, most: int, slots: int, tiers: Ints) -> tuple[Ints, Ints]:
    """List the K worth considering, ascending, and the K whose step time each one costs."""
    first, last = tiers.searchsorted((requests, requests + most))
    budgets = tiers[first:last] - requests
    if last == tiers.size:
        own = np.arange(max(int(tiers[-1]) - requests + 1, 0), most + 1)
        budgets = np.concatenate((budgets, own))
        return budgets, budgets
    # The largest K allowed may end inside a tier; a tier larger than the whole batch costs what the whole batch does.
    ends = np.append(budgets, most)
    return ends, np.append(budgets, min(int(tiers[last]) - requests, slots))
