"""Tests of tokens against their own conditional laws, exact whatever the prefixes were.

Every token has a law of its own, known given the text before it. Two kinds of statistic are used.

*Uniforms.* With the tokens of a law ordered from the likeliest down, ``u = P(before x) + v P(x)`` with a fresh uniform
``v`` is uniform and independent of everything before, so counts over bins are multinomial.

*Cells.* Tokens are put into cells that depend on the text before alone: by rank in the law, by a fixed split of the
vocabulary, by how much more or less the draft likes them than the target (where a wrong acceptance shows first).
Observed minus expected counts are a sum of martingale differences, whose covariance is the sum of those of the single
draws: the quadratic form is chi-square. Positions where the law leaves nothing to chance weigh nothing, which makes it
more sensitive than Pearson's statistic on pooled counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sgl_dspark.sampling.statistics import chi_square, chi_square_sf

BINS = 25
# First rank of each cell; the last cell begins at 50.
RANK_EDGES = torch.tensor([0, 1, 2, 3, 5, 8, 13, 21, 50])
HASH_CELLS = 16
# One row for each token id, one-hot at its cell.
VOCABULARY = torch.eye(HASH_CELLS, dtype=torch.float64)[torch.arange(2**16) * 2654435761 % 2**32 // 7 % HASH_CELLS]
# Between the cells of draft law over target law.
RATIO_EDGES = torch.tensor([0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0], dtype=torch.float64)
EFFECT = 0.06


@dataclass(frozen=True)
class Outcome:
    """What the tests said.

    Attributes
    ----------
    p_values : dict of float
        By test: ``uniforms``, ``ranks``, ``vocabulary``, ``ratios``.
    power : float
        Of the uniforms' test at its level, against a law at Cohen's distance ``EFFECT`` in the bins.
    samples : int
        Tokens tested.
    impossible : int
        Tokens that their law excludes; they are left out.
    """

    p_values: dict[str, float]
    power: float
    samples: int
    impossible: int


class _Cells:
    """Observed minus expected counts of cells, and their covariance."""

    def __init__(self, count: int) -> None:
        self.difference = torch.zeros(count, dtype=torch.float64)
        self.covariance = torch.zeros(count, count, dtype=torch.float64)

    def add(self, cell_laws: Tensor, cells: Tensor) -> None:
        """Count draws: the probability of each cell, fp64 [N, C], and the cell that was drawn, int64 [N]."""
        self.difference += cells.bincount(minlength=len(self.difference)) - cell_laws.sum(0)
        self.covariance += torch.diag(cell_laws.sum(0)) - cell_laws.T @ cell_laws

    def p_value(self) -> float:
        """Test all cells that are expected to vary enough; counts of the rest are dropped."""
        used = self.covariance.diagonal() > 5
        # Counts add up to the samples: one cell follows from the others.
        used[used.nonzero()[-1]] = False
        difference, covariance = self.difference[used], self.covariance[used][:, used]
        statistic = difference @ torch.linalg.solve(covariance, difference)
        return chi_square_sf(float(statistic), int(used.sum()))


class TokenTests:
    """Collects tokens part by part, then tests them.

    Parameters
    ----------
    seed : int
        Of the uniforms that spread a token over its own probability.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._bins = torch.zeros(BINS, dtype=torch.int64)
        self._cells = {
            "ranks": _Cells(len(RANK_EDGES)),
            "vocabulary": _Cells(HASH_CELLS),
            "ratios": _Cells(len(RATIO_EDGES) + 1),
        }
        self._samples = self._impossible = 0

    def add(self, tokens: Tensor, laws: Tensor, draft_laws: Tensor) -> None:
        """Add tokens int64 [N], their laws fp64 [N, V], and the draft's laws [N, V]."""
        own = laws.gather(1, tokens[:, None])
        possible = own.squeeze(1) > 0
        self._impossible += int((~possible).sum())
        tokens, laws, draft_laws, own = tokens[possible], laws[possible], draft_laws[possible], own[possible]
        self._samples += len(tokens)
        likelier = laws > own
        chance = torch.rand(len(tokens), dtype=torch.float64, generator=self._generator)
        uniforms = (laws * likelier).sum(1) + chance * own.squeeze(1)
        self._bins += (uniforms.clamp(0, 1 - 1e-12) * BINS).long().bincount(minlength=BINS)
        self._add_ranks(likelier.sum(1), laws)
        self._cells["vocabulary"].add(laws @ VOCABULARY[: laws.shape[1]], VOCABULARY[tokens].argmax(1))
        self._add_ratios(tokens, laws, draft_laws, own)

    def _add_ranks(self, ranks: Tensor, laws: Tensor) -> None:
        through = laws.topk(int(RANK_EDGES[-1])).values.cumsum(1)
        last = through[:, RANK_EDGES[1:] - 1]
        ends = torch.cat([torch.zeros(len(laws), 1, dtype=torch.float64), last, laws.sum(1, keepdim=True)], 1)
        self._cells["ranks"].add(ends.diff(dim=1), torch.searchsorted(RANK_EDGES, ranks, right=True) - 1)

    def _add_ratios(self, tokens: Tensor, laws: Tensor, draft_laws: Tensor, own: Tensor) -> None:
        drafted = draft_laws.gather(1, tokens[:, None])
        # Through each edge; the last cell takes the rest.
        through = [laws.masked_fill(draft_laws > edge * laws, 0).sum(1) for edge in RATIO_EDGES]
        below = torch.stack([torch.zeros_like(through[0]), *through, laws.sum(1)], 1)
        cells = (drafted > RATIO_EDGES * own).sum(1)
        self._cells["ratios"].add(below.diff(dim=1), cells)

    def outcome(self, alpha: float) -> Outcome:
        """Test everything that was added; ``alpha`` is the level that power is stated for."""
        even = chi_square(self._bins.numpy(), np.full(BINS, 1 / BINS), effect_size=EFFECT, alpha=alpha)
        p_values = {"uniforms": even.p_value, **{name: cells.p_value() for name, cells in self._cells.items()}}
        return Outcome(p_values, even.power, self._samples, self._impossible)
