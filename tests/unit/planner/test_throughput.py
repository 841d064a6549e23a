"""Whether the decisions pay: the planner against every fixed length, on a synthetic load with known costs."""

from __future__ import annotations

import pytest

from sgl_dspark.planner.policy import PlannerConfig
from tests.support.planner_load import GAMMA, Load, fixed_rate, planned_rate

STEPS = 1200
LOADS = {
    "mixed": Load(1),
    "bursty confidences": Load(1, correlation=0.8),
    "hard": Load(1, mean=-0.5),
    "hopeless": Load(1, mean=-3.0),
    "dear tokens": Load(1, per_token_s=0.2),
    "staircase": Load(1, staircase=16),
    "short requests": Load(1, life_steps=12),
}


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("requests", [1, 4, 16, 32])
def test_adaptive_never_loses_to_the_best_fixed_length(name: str, requests: int) -> None:
    load = Load(**{**vars(LOADS[name]), "requests": requests})
    best = max(fixed_rate(load, drafts, STEPS) for drafts in range(GAMMA + 1))
    rate, predicted = planned_rate(load, PlannerConfig(), STEPS)
    assert rate >= 0.97 * best
    if fixed_rate(load, 3, STEPS) > fixed_rate(load, 0, STEPS):
        assert predicted == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("requests", [4, 8, 16])
def test_adaptive_gains_where_requests_share_a_budget(requests: int) -> None:
    load = Load(requests)
    best = max(fixed_rate(load, drafts, STEPS) for drafts in range(GAMMA + 1))
    assert planned_rate(load, PlannerConfig(), STEPS)[0] >= 1.08 * best


@pytest.mark.parametrize("mean", [0.3, -0.5])
def test_following_a_single_block_two_steps_later_loses_and_averaging_does_not(mean: float) -> None:
    load = Load(1, mean=mean)
    best = max(fixed_rate(load, drafts, STEPS) for drafts in range(GAMMA + 1))
    assert planned_rate(load, PlannerConfig(smoothing_rows=0), STEPS)[0] < 0.97 * best
    assert planned_rate(load, PlannerConfig(), STEPS)[0] > best
