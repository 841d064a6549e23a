from __future__ import annotations

import torch

from sgl_dspark.sampling.draw import draw, uniforms


def test_each_index_gets_its_share_of_a_grid() -> None:
    weights = torch.tensor([3.0, 0.0, 5.0, 2.0])
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    counts = draw(weights.expand(1000, 4), grid).bincount(minlength=4)
    assert counts.tolist() == [300, 0, 500, 200]


def test_the_ends_never_reach_a_zero_weight() -> None:
    weights = torch.tensor([[0.0, 1e-30, 0.3, 0.0], [0.0, 1e-30, 0.3, 0.0]])
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw(weights, ends).tolist() == [1, 2]


def test_a_tail_below_fp32_resolution_keeps_its_mass() -> None:
    # 2**18 tokens of 2**-40 each: an fp32 running sum near 1 could not move by one of them.
    tail = 2**18
    weights = torch.full((1, tail + 1), 2.0**-40)
    weights[0, 0] = 1.0
    total = float(weights.double().sum())
    at = torch.tensor([(1.0 + 2.0**-40 * 1000.5) / total], dtype=torch.float64)
    assert draw(weights, at).item() == 1001


def test_nan_weights_stay_in_range() -> None:
    assert 0 <= draw(torch.full((1, 5), torch.nan), torch.tensor([0.4])).item() < 5


def test_uniforms_are_fp64_and_reproducible() -> None:
    cpu = torch.device("cpu")
    first = uniforms(3, 2, device=cpu, generator=torch.Generator().manual_seed(1))
    assert first.dtype == torch.float64
    assert torch.equal(first, uniforms(3, 2, device=cpu, generator=torch.Generator().manual_seed(1)))
    assert not torch.equal(first, first.float().double())
