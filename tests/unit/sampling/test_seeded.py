"""Uniforms of seeds and positions: the same for the same, spread and independent for others."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from sgl_dspark.sampling.seeded import seeded_uniforms


def test_known_values() -> None:
    """splitmix64 of 0, whose first output is 0xE220A8397B1DCDAF, seeds the stream; positions step through it."""
    first = 0xE220A8397B1DCDAF

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    expected = [(mix((first + p * 0x9E3779B97F4A7C15) % 2**64) >> 11) * 2.0**-53 for p in range(5)]
    assert seeded_uniforms(torch.zeros(5, dtype=torch.int64), torch.arange(5)).tolist() == expected


def test_uniform_over_seeds_and_over_positions() -> None:
    for seeds, positions in ((torch.arange(20_000), torch.tensor(17)), (torch.tensor(-3), torch.arange(20_000))):
        found = seeded_uniforms(seeds, positions).numpy()
        assert found.min() >= 0
        assert found.max() < 1
        assert stats.kstest(found, "uniform").pvalue > 1e-4
        # Neighbours do not tell of each other.
        cells = np.histogram2d(found[:-1], found[1:], bins=8, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > 1e-4


def test_extreme_seeds() -> None:
    seeds = torch.tensor([2**63 - 1, -(2**63), -1, 0])
    assert len(set(seeded_uniforms(seeds, torch.tensor(5)).tolist())) == 4
