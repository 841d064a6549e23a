"""Chi-square tests of observed tokens against an exact law, with the power they had.

numpy at the interface; the incomplete gamma function comes from ``torch.special``, as this ring has torch, not scipy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class ChiSquare:
    """Outcome of a chi-square goodness-of-fit test.

    Attributes
    ----------
    statistic : float
        Infinite when a token was seen that the law excludes.
    dof : int
        Degrees of freedom: cells after merging, less one (summed over the laws that were combined).
    p_value : float
        Probability under the law of a statistic at least this large; 1 when there is nothing to test (dof 0).
    power : float
        Probability that a law at Cohen's distance ``effect_size`` would have been rejected at ``alpha``.
    samples : int
    effect_size : float
        w = sqrt(sum((other - law)**2 / law)) over cells. 0.1 is a small effect: at two even cells, 0.55 against 0.45.
    alpha : float
        Level that ``power`` is for.
    """

    statistic: float
    dof: int
    p_value: float
    power: float
    samples: int
    effect_size: float
    alpha: float


def chi_square(
    observed_counts: ArrayLike,
    expected_probs: ArrayLike,
    *,
    min_expected: float = 5.0,
    effect_size: float = 0.1,
    alpha: float = 0.01,
) -> ChiSquare:
    """Test whether counts come from a law (Pearson's statistic).

    Cells whose expected count is below ``min_expected`` are merged into one, which takes the next smallest cell too
    until it reaches ``min_expected``; merging looks at the law alone, never at the counts. Cells of probability 0 are
    not merged: one token there is impossible under the law, and rejects it.

    Parameters
    ----------
    observed_counts : int [N]
    expected_probs : float [N]
        At least 0; normalised here.
    min_expected : float
        Positive; 5 is the usual rule.
    effect_size : float
        Cohen's w of the alternative that ``power`` is stated for.
    alpha : float
        In (0, 1).

    Returns
    -------
    ChiSquare

    Raises
    ------
    ValueError
        If the shapes differ, or the law has no mass, or a value is negative.
    """
    observed, law = np.asarray(observed_counts, dtype=np.float64), np.asarray(expected_probs, dtype=np.float64)
    if observed.shape != law.shape or observed.ndim != 1:
        raise ValueError(f"Counts {observed.shape} and law {law.shape} must be vectors over the same tokens.")
    if not (law.min(initial=0) >= 0 and observed.min(initial=0) >= 0 and law.sum() > 0):
        raise ValueError("Counts and probabilities must be at least 0, and the law must have some mass.")
    samples = int(observed.sum())
    expected = law / law.sum() * samples
    impossible = bool(observed[law == 0].any())
    seen, wanted = _merge(observed[law > 0], expected[law > 0], min_expected)
    statistic = float("inf") if impossible else float(((seen - wanted) ** 2 / wanted).sum()) if samples else 0.0
    return _outcome(statistic, len(wanted) - 1, samples, effect_size, alpha)


def combine(results: Iterable[ChiSquare]) -> ChiSquare:
    """Add independent tests (say one per context) into one: statistics and degrees of freedom add up.

    Parameters
    ----------
    results : iterable of ChiSquare
        Of one ``effect_size`` and ``alpha``. The combined power is for that effect in every one of them.

    Raises
    ------
    ValueError
        If there is no result, or they state power for different alternatives.
    """
    parts = list(results)
    if len({(part.effect_size, part.alpha) for part in parts}) != 1:
        raise ValueError("Combine at least one result, all of the same effect size and alpha.")
    statistic, dof, samples = sum(p.statistic for p in parts), sum(p.dof for p in parts), sum(p.samples for p in parts)
    return _outcome(statistic, dof, samples, parts[0].effect_size, parts[0].alpha)


def chi_square_sf(statistic: float, dof: int) -> float:
    """Give the probability that a chi-square variable with ``dof`` degrees of freedom exceeds ``statistic``."""
    return float(_sf(torch.tensor([dof / 2], dtype=torch.float64), statistic)[0])


def chi_square_power(dof: int, samples: int, effect_size: float, alpha: float) -> float:
    """Give the probability that a test at ``alpha`` rejects a law at distance ``effect_size`` after ``samples``.

    Under that law the statistic is noncentral chi-square with noncentrality samples * effect_size**2: a mixture of
    central ones with dof + 2j degrees of freedom and Poisson weights.
    """
    if dof < 1:
        return 0.0
    half = samples * effect_size**2 / 2
    spread = 12 * half**0.5 + 40
    j = torch.arange(max(0, int(half - spread)), int(half + spread), dtype=torch.float64)
    log_weights = torch.special.xlogy(j, torch.tensor(half, dtype=torch.float64)) - half - torch.lgamma(j + 1)
    return min(1.0, float((log_weights.exp() * _sf(dof / 2 + j, _critical(dof, alpha))).sum()))


def _sf(half_dofs: torch.Tensor, statistic: float) -> torch.Tensor:
    tail: torch.Tensor = torch.special.gammaincc(half_dofs, torch.full_like(half_dofs, statistic / 2))
    return tail


def _critical(dof: int, alpha: float) -> float:
    """Find the statistic that is exceeded with probability ``alpha``, by bisection."""
    low, high = 0.0, float(dof)
    while chi_square_sf(high, dof) > alpha:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if chi_square_sf(middle, dof) > alpha else (low, middle)
    return high


def _merge(
    observed: NDArray[np.float64], expected: NDArray[np.float64], min_expected: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge the smallest expected cells, just so many that every cell of the result reaches ``min_expected``."""
    order = np.argsort(expected, kind="stable")
    observed, expected = observed[order], expected[order]
    small = int((expected < min_expected).sum())
    if small == 0:
        return observed, expected
    through = expected.cumsum()
    while small < len(expected) and through[small - 1] < min_expected:
        small += 1
    return (
        np.concatenate([[observed[:small].sum()], observed[small:]]),
        np.concatenate([[through[small - 1]], expected[small:]]),
    )


def _outcome(statistic: float, dof: int, samples: int, effect_size: float, alpha: float) -> ChiSquare:
    p_value = 0.0 if statistic == float("inf") else chi_square_sf(statistic, dof) if dof > 0 else 1.0
    power = chi_square_power(dof, samples, effect_size, alpha)
    return ChiSquare(statistic, dof, p_value, power, samples, effect_size, alpha)
