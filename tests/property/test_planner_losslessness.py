"""Exact losslessness of the shipped planner, by enumeration, with the retrospective search as the failing control."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_dspark.planner.capacity import choose_budget
from sgl_dspark.sampling.exact import Round, is_non_anticipating, max_abs_difference, output_law
from tests.support import planner_rules as rules
from tests.support import verify_rules

ROUNDING = 1e-12
INSTANCES = 400
APPENDIX_TIMES = 1 / np.array([1.0, 0.5, 0.45])


def appendix_a() -> Round:
    """Two tokens; a first draft of 0 makes slot 1 look good, a first draft of 1 makes it look worthless."""
    half, target = torch.full((2,), 0.5, dtype=torch.float64), torch.tensor([0.7, 0.3], dtype=torch.float64)
    return Round(
        draft=(half.expand(1, 2), half.expand(2, 2)),
        target=tuple(target.expand(2**i, 2) for i in range(3)),
        confidences=(torch.tensor([0.8], dtype=torch.float64), torch.tensor([0.9, 0.0], dtype=torch.float64)),
    )


def first_token_law(rule: rules.Rule) -> list[float]:
    return [round(float(p), 12) for p in output_law([appendix_a()], rule).view(2, 4).sum(1)]


def lossless(step: Sequence[Round], rule: rules.Rule) -> bool:
    return is_non_anticipating(step, rule) and max_abs_difference(step, rule) < ROUNDING


def test_appendix_a_global_search_on_current_confidences_fails() -> None:
    rule = rules.retrospective(APPENDIX_TIMES)
    assert first_token_law(rule) == [0.85, 0.15]
    assert not is_non_anticipating([appendix_a()], rule)
    assert max_abs_difference([appendix_a()], rule) > 0.05


def test_appendix_a_algorithm_1_admits_nothing_and_is_lossless() -> None:
    rule = rules.shipped_early_stop(APPENDIX_TIMES)
    assert rule(np.array([[0.8, 0.9]])).tolist() == [1]
    assert rule(np.array([[0.8, 0.0]])).tolist() == [1]
    assert first_token_law(rule) == [0.7, 0.3]
    assert lossless([appendix_a()], rule)


@pytest.mark.parametrize("budget", [0, 1, 2])
def test_appendix_a_any_external_budget_is_lossless(budget: int) -> None:
    assert lossless([appendix_a()], rules.shipped_admit(budget))


def fixed(rng: np.random.Generator, slots: int) -> rules.Rule:
    return verify_rules.fixed([int(rng.integers(1, 4))])


def threshold(rng: np.random.Generator, slots: int) -> rules.Rule:
    return rules.shipped_threshold(float(rng.choice([0.0, 0.5, rng.random()])))


def algorithm_1(rng: np.random.Generator, slots: int) -> rules.Rule:
    return rules.shipped_early_stop(rng.uniform(0.5, 3.0, size=slots + 1))


def search_and_rank(rng: np.random.Generator, slots: int) -> rules.Rule:
    """K from confidences of two steps ago, which know nothing of this step's drafts."""
    lagged = rules.survival32(rng.random((slots // 2, 2)))
    budget = choose_budget(lagged, rng.uniform(0.5, 3.0, size=slots + 1)).budget
    return rules.shipped_admit(budget)


@pytest.mark.parametrize("make_rule", [fixed, threshold, algorithm_1])
def test_one_request(make_rule: Callable[[np.random.Generator, int], rules.Rule]) -> None:
    rng = np.random.default_rng(1)
    for _ in range(INSTANCES):
        step = [rules.random_round(rng, 2, 2)]
        assert lossless(step, make_rule(rng, 2))


@pytest.mark.parametrize("make_rule", [algorithm_1, search_and_rank])
def test_two_requests_jointly(make_rule: Callable[[np.random.Generator, int], rules.Rule]) -> None:
    rng = np.random.default_rng(2)
    budgets = set()
    for _ in range(INSTANCES):
        step = [rules.random_round(rng, 2, 2) for _ in range(2)]
        rule = make_rule(rng, 4)
        assert lossless(step, rule)
        budgets.add(int(rule(np.full((2, 2), 0.9)).sum()) - 2)
    # The instances must exercise every K, or they would prove little.
    assert budgets == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_two_requests_with_an_external_budget(budget: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(INSTANCES):
        step = [rules.random_round(rng, 2, 2) for _ in range(2)]
        assert lossless(step, rules.shipped_admit(budget))


def test_the_global_search_on_current_confidences_anticipates_at_random_too() -> None:
    rng = np.random.default_rng(4)
    caught = 0
    for _ in range(100):
        step = [rules.random_round(rng, 2, 2) for _ in range(2)]
        caught += not is_non_anticipating(step, rules.retrospective(rng.uniform(0.5, 3.0, size=5)))
    assert caught > 0


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), requests=st.integers(1, 4), gamma=st.integers(1, 4), budget=st.integers(0, 16))
def test_a_slot_never_depends_on_drafts_at_or_after_it(seed: int, requests: int, gamma: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    confidences = rng.choice([0.0, 0.3, 0.7, 1.0], size=(requests, gamma))
    r, j = int(rng.integers(requests)), int(rng.integers(gamma))
    # Drawing x_(r, j) again can only move the confidences of the slots after j.
    redrawn = confidences.copy()
    redrawn[r, j + 1 :] = rng.random(gamma - j - 1)
    times = rng.uniform(0.5, 3.0, size=requests * gamma + 1)
    for rule in (rules.shipped_early_stop(times), rules.shipped_admit(budget), rules.shipped_threshold(0.5)):
        assert (rule(confidences)[r] > j + 1) == (rule(redrawn)[r] > j + 1)
