from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sgl_dspark.sampling.statistics import chi_square, chi_square_power, chi_square_sf, combine


def test_statistic_by_hand() -> None:
    # (60-50)^2/50 + (40-50)^2/50 = 4 with one degree of freedom.
    got = chi_square([60, 40], [0.5, 0.5])
    assert got.statistic == pytest.approx(4.0)
    assert got.dof == 1
    assert got.p_value == pytest.approx(0.0455, abs=1e-4)
    assert got.samples == 100


@pytest.mark.parametrize(("statistic", "dof"), [(0.0, 1), (3.2, 2), (150.0, 100), (900.0, 1000), (80.0, 3)])
def test_survival_function_against_scipy(statistic: float, dof: int) -> None:
    assert chi_square_sf(statistic, dof) == pytest.approx(stats.chi2.sf(statistic, dof), rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("dof", [1, 7, 200])
@pytest.mark.parametrize(("samples", "effect"), [(1000, 0.1), (20000, 0.03), (50, 0.5), (100000, 0.2), (100, 0.0)])
def test_power_against_scipy(dof: int, samples: int, effect: float) -> None:
    critical = stats.chi2.isf(0.01, dof)
    wanted = stats.ncx2.sf(critical, dof, samples * effect**2) if effect else 0.01
    assert chi_square_power(dof, samples, effect, 0.01) == pytest.approx(wanted, rel=1e-6)


def test_p_values_are_uniform_under_the_law() -> None:
    generator = np.random.default_rng(0)
    law = generator.dirichlet(np.ones(30))
    p_values = [chi_square(generator.multinomial(5000, law), law).p_value for _ in range(400)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_stated_power_is_reached() -> None:
    generator = np.random.default_rng(1)
    law = np.full(10, 0.1)
    other = law + np.array([0.01, -0.01] * 5)
    effect = float(np.sqrt(((other - law) ** 2 / law).sum()))
    results = [chi_square(generator.multinomial(1500, other), law, effect_size=effect, alpha=0.05) for _ in range(600)]
    rejected = np.mean([r.p_value < 0.05 for r in results])
    assert abs(rejected - results[0].power) < 4 * np.sqrt(0.25 / 600)


def test_small_cells_are_merged_by_the_law_alone() -> None:
    law = [0.9, 0.06, 0.02, 0.01, 0.01]
    # Expected 90, 6, 2, 1, 1: the three small ones hold 4 < 5 and take the 6 as well.
    got = chi_square([88, 7, 3, 1, 1], law)
    assert got.dof == 1
    assert got.statistic == pytest.approx((88 - 90) ** 2 / 90 + (12 - 10) ** 2 / 10)


def test_an_impossible_token_rejects() -> None:
    got = chi_square([100, 100, 1], [0.5, 0.5, 0.0])
    assert got.p_value == 0.0
    assert got.dof == 1


def test_nothing_to_test() -> None:
    for counts, law in (([0, 0], [0.5, 0.5]), ([9, 0], [1.0, 0.0])):
        got = chi_square(counts, law)
        assert (got.dof, got.p_value, got.power) == (0, 1.0, 0.0)


def test_combining_adds_statistics_and_power() -> None:
    parts = [chi_square([60, 40], [0.5, 0.5]), chi_square([30, 30, 40], [0.3, 0.3, 0.4])]
    got = combine(parts)
    assert got.dof == 3
    assert got.statistic == pytest.approx(4.0)
    assert got.samples == 200
    with pytest.raises(ValueError, match="at least one"):
        combine([])
    with pytest.raises(ValueError, match="same effect"):
        combine([parts[0], chi_square([1, 1], [0.5, 0.5], alpha=0.05)])


@pytest.mark.parametrize(("counts", "law"), [([1], [0.5, 0.5]), ([1, 1], [0.0, 0.0]), ([1, 1], [-1.0, 2.0])])
def test_bad_input_is_refused(counts: list[int], law: list[float]) -> None:
    with pytest.raises(ValueError, match="[Cc]ounts"):
        chi_square(counts, law)
