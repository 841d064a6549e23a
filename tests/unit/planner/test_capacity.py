from __future__ import annotations

import numpy as np
import pytest

from sgl_dspark.planner.capacity import Capacity, choose_budget
from sgl_dspark.planner.prefix import early_stop

SURVIVAL = np.array([[0.9, 0.6, 0.3], [0.8, 0.4, 0.0]], dtype=np.float32)


def test_a_worked_example() -> None:
    times = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6])
    # tokens 2, 2.9, 3.7, 4.3, 4.7, 5.0 and no sixth: rates 2, 2.64, 3.08, 3.31, 3.36, 3.33.
    best = choose_budget(SURVIVAL, times)
    assert best.budget == 4
    assert best.expected_tokens == pytest.approx(4.7, abs=1e-6)
    assert best.step_time_s == 1.4
    assert best.rate == pytest.approx(4.7 / 1.4, abs=1e-6)


def test_a_step_in_the_staircase_is_crossed_only_by_the_global_search() -> None:
    # One draft does not pay for the next graph, five do.
    times = np.array([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    assert early_stop(SURVIVAL, times)[0] == Capacity(0, 2.0, 1.0)
    assert choose_budget(SURVIVAL, times).budget == 5


def test_a_second_lower_peak_does_not_hurt_early_stop() -> None:
    # Rates 1, 1.9, 1.35, 1.53: not unimodal, and stopping early is optimal all the same (the paper says "only if").
    survival = np.array([[0.9, 0.8, 0.7]], dtype=np.float64)
    capacity, _ = early_stop(survival, 1 / np.array([1.0, 1.0, 0.5, 0.45]))
    assert capacity.budget == 1
    assert choose_budget(survival.astype(np.float32), 1 / np.array([1.0, 1.0, 0.5, 0.45])).budget == 1


def test_a_plateau_before_the_peak_defeats_early_stop() -> None:
    # Rates 1, 1, 1.25.
    survival, times = np.array([[1.0, 0.5]]), np.array([1.0, 2.0, 2.0])
    assert early_stop(survival, times)[0].budget == 0
    assert choose_budget(survival.astype(np.float32), times).budget == 2


@pytest.mark.parametrize(("limit", "budget"), [(None, 5), (3, 3), (0, 0), (-2, 0), (99, 5)])
def test_a_limit_bounds_the_budget(limit: int | None, budget: int) -> None:
    assert choose_budget(SURVIVAL, np.ones(7), limit=limit).budget == budget


def test_a_budget_is_priced_at_the_tier_it_runs_at() -> None:
    times = np.array([1.0, 1.1, 1.2, 1.9, 2.0, 2.1, 2.2])
    # Two requests: tiers of 4 and 8 tokens are budgets of 2 (1.2 s) and 6 (2.2 s); nothing in between is cheaper.
    best = choose_budget(SURVIVAL, times, tiers=np.array([4, 8]))
    assert (best.budget, best.step_time_s) == (2, 1.2)
    assert choose_budget(SURVIVAL, times).budget == 2
    # A single tier of 8: the five drafts there are fill it as far as they go.
    filled = choose_budget(SURVIVAL, times, tiers=np.array([8]))
    assert (filled.budget, filled.step_time_s) == (5, 2.2)


def test_a_tier_larger_than_the_batch_costs_what_the_whole_batch_does() -> None:
    best = choose_budget(SURVIVAL, np.linspace(1, 2, 7), tiers=np.array([64]))
    assert (best.budget, best.step_time_s) == (5, 2.0)


def test_above_the_last_tier_a_step_runs_at_its_own_size() -> None:
    best = choose_budget(SURVIVAL, np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]), tiers=np.array([1, 3]))
    assert (best.budget, best.step_time_s) == (4, 1.4)


def test_no_tiers_is_the_same_as_none() -> None:
    times = np.linspace(1, 2, 7)
    assert choose_budget(SURVIVAL, times, tiers=np.array([], dtype=np.int64)) == choose_budget(SURVIVAL, times)


def test_step_times_of_another_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="pass R \\* gamma"):
        choose_budget(SURVIVAL, np.ones(6))


def test_small_survivals_count_in_a_large_batch() -> None:
    # fp32 sums over 3584 slots would lose a survival of 1e-4 beside 3000 tokens.
    survival = np.full((512, 7), 1e-4, dtype=np.float32)
    best = choose_budget(survival, np.ones(512 * 7 + 1))
    assert best.budget == 512 * 7
    assert best.expected_tokens == pytest.approx(512 + 0.3584, abs=1e-6)
