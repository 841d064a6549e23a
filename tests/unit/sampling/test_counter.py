"""Counter-based uniforms: the published mixer, fresh at every step, the same for everybody, uniform."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sgl_dspark.sampling.counter import ACCEPT, DRAFT, counter_uniforms

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def uniforms(seed: int, step: int, rows: int = 3, width: int = 4, stream: int = DRAFT) -> torch.Tensor:
    return counter_uniforms(torch.tensor(seed), torch.tensor(step), rows, width, stream)


def test_the_mixer_is_splitmix64() -> None:
    # First outputs of SplitMix64 from state 1234567, as published with java.util.SplittableRandom.
    state = 1234567
    assert [mixed((state + i * GOLDEN) & MASK) for i in (1, 2)] == [6457827717110365317, 3203168211198807973]


@given(seed=st.integers(-(1 << 63), (1 << 63) - 1), step=st.integers(0, 1 << 40), stream=st.sampled_from([0, 1]))
def test_numbers_equal_those_of_unbounded_integers(seed: int, step: int, stream: int) -> None:
    start = mixed((mixed(seed & MASK) + (step * 4 + stream) * GOLDEN) & MASK)
    want = [[(mixed((start + (r * 2 + c + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53 for c in range(2)] for r in range(3)]
    assert uniforms(seed, step, 3, 2, stream).tolist() == want


def test_steps_and_streams_differ_and_repeats_do_not() -> None:
    assert torch.equal(uniforms(5, 9), uniforms(5, 9))
    seen = [uniforms(5, 9), uniforms(5, 10), uniforms(6, 9), uniforms(5, 9, stream=ACCEPT)]
    assert torch.cat(seen).unique().numel() == 4 * 12


def test_a_row_does_not_depend_on_the_batch() -> None:
    assert torch.equal(uniforms(5, 9, rows=8)[:3], uniforms(5, 9, rows=3))


def test_numbers_are_uniform_and_independent_of_their_neighbours() -> None:
    found = torch.cat([uniforms(1, step, 64, 7) for step in range(400)])
    assert found.min() >= 0
    assert found.max() < 1
    flat = found.flatten()
    counts = torch.histc(flat, 256, 0.0, 1.0)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4
    for left, right in ((found[:, :-1], found[:, 1:]), (found[:-64], found[64:])):
        cells = (left * 16).long() * 16 + (right * 16).long()
        assert stats.chisquare(cells.flatten().bincount(minlength=256).numpy()).pvalue > 1e-4
