"""What holds for every survival and every step-time model: closure, bookkeeping, optimality and limits."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sgl_dspark.planner.allocate import admit, threshold_lens
from sgl_dspark.planner.capacity import choose_budget
from sgl_dspark.planner.prefix import early_stop
from sgl_dspark.planner.survival import survival_of
from tests.support.planner_rules import lazy_early_stop

Floats32 = NDArray[np.float32]
Floats64 = NDArray[np.float64]

LEVELS = [0.0, 0.25, 0.5, 1.0]
"""Products of these are exact in fp32, so that ties are ties."""

LOGITS = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])


@st.composite
def survivals(draw: st.DrawFn, most_requests: int = 4, most_gamma: int = 4) -> Floats32:
    shape = (draw(st.integers(1, most_requests)), draw(st.integers(1, most_gamma)))
    one = st.sampled_from(LEVELS) | st.floats(0, 1, width=32)
    return np.cumprod(draw(hnp.arrays(np.float32, shape, elements=one)), axis=1)


def times_for(survival: Floats32, seed: int) -> Floats64:
    """Monotone staircase, ties included."""
    rng = np.random.default_rng(seed)
    return 1.0 + np.cumsum(rng.choice([0.0, 0.0, 0.1, 0.7], size=survival.size + 1))


def all_lens(survival: Floats32) -> list[tuple[int, ...]]:
    """Every choice of prefixes that admits no slot of survival 0."""
    return list(itertools.product(*[range(int((row > 0).sum()) + 1) for row in survival]))


def tokens_of(survival: Floats32, lens: tuple[int, ...]) -> float:
    return len(lens) + sum(float(survival[r, :n].astype(np.float64).sum()) for r, n in enumerate(lens))


@given(
    z=hnp.arrays(np.float32, st.tuples(st.integers(0, 300), st.integers(1, 8)), elements=LOGITS),
    inverse=st.floats(0.125, 8, width=32),
)
def test_survival_is_monotone_and_bounded_for_any_logits(z: Floats32, inverse: float) -> None:
    survival = survival_of(z, np.full(z.shape[1], inverse, dtype=np.float32))
    assert survival.dtype == np.float32
    assert survival.flags.c_contiguous
    assert ((survival >= 0) & (survival <= 1)).all()
    assert (np.diff(survival, axis=1) <= 0).all()
    broken = np.logical_or.accumulate(np.isnan(z), axis=1)
    assert (survival[broken] == 0).all()


@given(survival=survivals(6, 5), budget=st.integers(-1, 40))
def test_admission_is_prefix_closed_exact_and_never_of_zeros(survival: Floats32, budget: int) -> None:
    lens = admit(survival, budget)
    ranked = sorted((-float(a), r, j) for (r, j), a in np.ndenumerate(survival) if a > 0)[: max(budget, 0)]
    expected = np.zeros(len(survival), dtype=np.int64)
    for _, r, j in ranked:
        # The key puts a request's earlier slots first, so a prefix grows one slot at a time.
        assert expected[r] == j
        expected[r] = j + 1
    assert lens.dtype == np.int64
    assert lens.tolist() == expected.tolist()
    assert lens.sum() == min(max(budget, 0), int((survival > 0).sum()))


@settings(deadline=None)
@given(survival=survivals(3, 3), seed=st.integers(0, 10**6))
def test_search_and_admission_reach_the_best_of_all_allocations(survival: Floats32, seed: int) -> None:
    times = times_for(survival, seed)
    best = choose_budget(survival, times)
    rates = [tokens_of(survival, lens) / times[sum(lens)] for lens in all_lens(survival)]
    assert np.isclose(best.rate, max(rates), rtol=1e-12)
    assert best.step_time_s == times[best.budget]
    lens = admit(survival, best.budget)
    assert lens.sum() == best.budget
    assert np.isclose(tokens_of(survival, tuple(lens)), best.expected_tokens, rtol=1e-12)


@settings(deadline=None)
@given(survival=survivals(3, 3), budget=st.integers(0, 9))
def test_for_a_fixed_budget_no_other_allocation_expects_more(survival: Floats32, budget: int) -> None:
    mine = tokens_of(survival, tuple(admit(survival, budget)))
    others = [tokens_of(survival, lens) for lens in all_lens(survival) if sum(lens) <= budget]
    assert mine >= max(others) - 1e-12


@given(survival=survivals(), seed=st.integers(0, 10**6), limit=st.none() | st.integers(0, 20))
def test_search_prefers_the_smallest_of_equally_good_budgets(survival: Floats32, seed: int, limit: int | None) -> None:
    times = times_for(survival, seed)
    ranked = np.sort(survival[survival > 0].astype(np.float64))[::-1][:limit]
    rates = np.cumsum([len(survival), *ranked]) / times[: len(ranked) + 1]
    best = choose_budget(survival, times, limit=limit)
    assert best.budget == int(np.argmax(rates))
    assert best.rate >= len(survival) / times[0]


@given(survival=survivals(), seed=st.integers(0, 10**6), data=st.data())
def test_with_tiers_a_budget_costs_its_tier_and_fills_it(survival: Floats32, seed: int, data: st.DataObject) -> None:
    requests, most = len(survival), int((survival > 0).sum())
    times = times_for(survival, seed)
    tiers = np.array(sorted(data.draw(st.sets(st.integers(1, requests + survival.size + 3), min_size=1))))
    limit = data.draw(st.integers(0, survival.size))
    best = choose_budget(survival, times, tiers=tiers, limit=limit)
    most = min(most, limit)

    def priced(budget: int) -> float:
        tier = next((int(t) for t in tiers if t >= requests + budget), requests + budget)
        return float(times[min(tier - requests, survival.size)])

    tokens = np.cumsum([requests, *np.sort(survival[survival > 0].astype(np.float64))[::-1][:most]])
    rates = [tokens[k] / priced(k) for k in range(most + 1)]
    assert np.isclose(best.rate, max(rates), rtol=1e-12)
    assert best.step_time_s == priced(best.budget)
    # One draft more would not fit, or would need the next graph.
    full = best.budget == most or not (tiers >= requests + best.budget).any() or requests + best.budget in tiers
    assert full


@given(survival=survivals(5, 5), seed=st.integers(0, 10**6))
def test_algorithm_1_flat_and_lazy_agree_and_keep_their_books(survival: Floats32, seed: int) -> None:
    times = times_for(survival, seed)
    capacity, lens = early_stop(survival, times)
    assert lens.tolist() == lazy_early_stop(survival, times).tolist()
    assert capacity.budget == lens.sum()
    assert np.isclose(capacity.expected_tokens, tokens_of(survival, tuple(lens)), rtol=1e-12)
    assert capacity.step_time_s == times[capacity.budget]
    assert capacity.rate >= len(survival) / times[0]
    assert capacity.rate <= choose_budget(survival, times).rate * (1 + 1e-12)
    assert all(survival[r, j] > 0 for r, n in enumerate(lens) for j in range(n))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), requests=st.integers(20, 60))
def test_algorithm_1_breaks_ties_by_place_in_large_batches_too(seed: int, requests: int) -> None:
    rng = np.random.default_rng(seed)
    survival = np.cumprod(rng.choice([0.5, 1.0], size=(requests, 5)), axis=1)
    times = 1.0 + 0.01 * np.arange(survival.size + 1)
    assert early_stop(survival, times)[1].tolist() == lazy_early_stop(survival, times).tolist()


def test_no_step_time_makes_a_zero_worth_verifying() -> None:
    # Measured times may fall with more tokens; what cannot be accepted is not verified all the same.
    survival, times = np.array([[1.0, 0.0]], dtype=np.float32), np.array([1.0, 0.9, 0.5])
    assert early_stop(survival, times)[0].budget == 1
    assert choose_budget(survival, times).budget == 1
    assert choose_budget(survival, times, tiers=np.array([1, 2, 3])).budget == 1


@given(survival=survivals(6, 5), slope=st.floats(0.001, 3), base=st.floats(0.1, 5))
def test_under_affine_step_time_stopping_early_loses_nothing(survival: Floats32, slope: float, base: float) -> None:
    times = base + slope * np.arange(survival.size + 1)
    capacity, _ = early_stop(survival, times)
    assert np.isclose(capacity.rate, choose_budget(survival, times).rate, rtol=1e-9)


@given(survival=survivals(5, 5), seed=st.integers(0, 10**6))
def test_where_throughput_has_one_peak_the_lagged_search_finds_the_same_budget(survival: Floats32, seed: int) -> None:
    # Stationary confidences: what was published two steps ago is what is ranked now.
    times = times_for(survival, seed)
    ranked = np.sort(survival[survival > 0].astype(np.float64))[::-1]
    rates = np.cumsum([len(survival), *ranked]) / times[: len(ranked) + 1]
    peak = int(np.argmax(rates))
    one_peak = bool((np.diff(rates[: peak + 1]) > 0).all() and (np.diff(rates[peak:]) <= 0).all())
    agree = early_stop(survival, times)[0].budget == choose_budget(survival, times).budget
    assert agree or not one_peak
    assert agree == (np.diff(rates[: peak + 1]) > 0).all()


def test_an_equal_rate_stops_algorithm_1_and_a_staircase_defeats_it() -> None:
    survival = np.full((1, 3), 1.0, dtype=np.float32)
    capacity, lens = early_stop(survival, np.array([1.0, 2.0, 2.0, 2.0]))
    assert capacity.budget == 0
    assert lens.tolist() == [0]
    assert choose_budget(survival, np.array([1.0, 2.0, 2.0, 2.0])).budget == 3


@given(survival=survivals(5, 5))
def test_limits_of_the_cost_model(survival: Floats32) -> None:
    flat = np.ones(survival.size + 1)
    positive = int((survival > 0).sum())
    assert choose_budget(survival, flat).budget <= positive
    # Survivals below the resolution of the sum add nothing that could be compared.
    visible = int((survival > 1e-9).sum())
    assert choose_budget(survival, flat).budget >= visible
    assert early_stop(survival, flat)[0].budget >= visible
    proportional = (len(survival) + np.arange(survival.size + 1)).astype(np.float64)
    assert choose_budget(survival, proportional).budget == 0
    assert early_stop(survival, proportional)[0].budget == 0


def test_no_requests() -> None:
    empty, times = np.zeros((0, 7), dtype=np.float32), np.ones(1)
    assert choose_budget(empty, times).budget == 0
    assert early_stop(empty, times)[1].shape == admit(empty, 3).shape == (0,)


@settings(deadline=None)
@given(survival=survivals(1, 7), slope=st.floats(0.001, 1))
def test_more_identical_requests_never_verify_more_each(survival: Floats32, slope: float) -> None:
    means = []
    for requests in range(1, 41):
        rows = np.repeat(survival, requests, axis=0)
        times = 1.0 + slope * (requests + np.arange(rows.size + 1))
        means.append(choose_budget(rows, times).budget / requests)
    # Where a stretch of equal survivals ties, rounding may end it anywhere; each still lies between its neighbours.
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(means))


@given(
    confidence=hnp.arrays(np.float32, (3, 5), elements=st.sampled_from([*LEVELS, np.nan])), theta=st.floats(-0.1, 1.1)
)
def test_threshold_counts_the_leading_slots(confidence: Floats32, theta: float) -> None:
    for row, n in zip(confidence, threshold_lens(confidence, theta), strict=True):
        assert all(row[:n] >= theta)
        assert n == 5 or not row[n] >= theta
