"""Every policy and every named fallback of the planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from sgl_dspark.planner.capacity import choose_budget
from sgl_dspark.planner.policy import Decision, Planner, PlannerConfig, StepCosts
from sgl_dspark.planner.survival import survival_of
from tests.support.planner_steps import GAMMA, ONES, affine, drive, ids, logits_for, view


def test_adaptive_searches_the_survival_of_two_steps_ago() -> None:
    planner, costs = Planner(PlannerConfig(smoothing_rows=0), GAMMA, 8), affine(4)
    logits = np.random.default_rng(0).normal(0.5, 1.5, size=(4, GAMMA)).astype(np.float32)
    for z in (logits, -logits):
        planner.decide(view(4, costs))
        planner.publish(ids(4), ids(4) * 0, z)
    decision = planner.decide(view(4, costs))
    expected = choose_budget(survival_of(logits, ONES[0]), costs.step_times)
    assert (decision.step, decision.draft, decision.reason, decision.probe) == (3, True, "", False)
    assert decision.budget == expected.budget
    assert decision.expected_tokens == pytest.approx(expected.expected_tokens)
    assert decision.step_time_s == expected.step_time_s
    assert decision.gain == pytest.approx(expected.rate * costs.plain_s / 4 - 1)


def test_greedy_and_sampled_rows_have_temperatures_of_their_own() -> None:
    inverse = np.stack((np.full(GAMMA, 4.0), np.full(GAMMA, 0.01))).astype(np.float32)
    tokens = {}
    for name, sampled in (("greedy", [False] * 3), ("sampled", [True] * 3), ("mixed", [False, True, False])):
        planner = Planner(PlannerConfig(), GAMMA, 8)
        step = replace(view(3, affine(3, per_token_s=1e-6)), inverse_temperatures=inverse, sampled=np.array(sampled))
        tokens[name] = drive(planner, step, 2.0, steps=4)[-1].expected_tokens
    assert tokens["greedy"] > tokens["mixed"] > tokens["sampled"]
    assert tokens["mixed"] == pytest.approx((2 * tokens["greedy"] + tokens["sampled"]) / 3, rel=1e-3)


def test_without_history_the_prior_is_used_and_named() -> None:
    planner = Planner(PlannerConfig(prior_confidence=0.5), GAMMA, 8)
    decision = planner.decide(view(2, affine(2, per_token_s=1e-6)))
    assert (decision.draft, decision.reason) == (True, "no_history")
    assert decision.expected_tokens == pytest.approx(2 + 2 * sum(0.5**k for k in range(1, GAMMA + 1)), rel=1e-5)
    assert planner.fallbacks == {"no_history": 2}


def test_a_reused_slot_takes_the_mean_and_is_named() -> None:
    planner, costs = Planner(PlannerConfig(), GAMMA, 8), affine(1, per_token_s=1e-6)
    drive(planner, view(1, costs), 4.0, steps=20)
    decision = planner.decide(view(1, costs, generation=1))
    assert decision.reason == "slot_reused"
    assert planner.fallbacks["slot_reused"] == 1
    assert decision.expected_tokens == pytest.approx(1 + float(planner.slot_mean.value.sum()), rel=1e-5)


def test_history_that_is_too_old_takes_the_mean_and_is_named() -> None:
    planner, costs = Planner(PlannerConfig(max_age=5), GAMMA, 8), affine(2)
    drive(planner, view(2, costs), 1.0, steps=6)
    # Slot 7 goes on publishing, slots 0 and 1 do not.
    for _ in range(8):
        decision = planner.decide(view(2, costs))
        planner.publish(ids(1) + 7, ids(1) * 0, logits_for(1, 1.0))
    assert decision.reason == "stale_history"
    assert planner.fallbacks["stale_history"] > 0


def test_nan_confidences_take_the_mean_and_are_named() -> None:
    planner, costs = Planner(PlannerConfig(), GAMMA, 8), affine(4)
    for _ in range(4):
        logits = logits_for(4, 1.0)
        logits[2, 3] = np.nan
        decision = planner.decide(view(4, costs))
        planner.publish(ids(4), ids(4) * 0, logits)
    assert decision.reason == "nan_confidence"
    assert planner.fallbacks["nan_confidence"] == 2
    assert np.isfinite([decision.expected_tokens, decision.gain]).all()


def test_a_burst_is_held_to_the_known_rows_and_the_mean() -> None:
    planner, many = Planner(PlannerConfig(), GAMMA, 64), affine(32, per_token_s=0.02)
    drive(planner, view(2, affine(2, per_token_s=0.02)), 0.0, steps=30)
    decision = planner.decide(view(32, many))
    assert decision.reason == "burst"
    assert planner.fallbacks["burst"] == 1
    survival = np.tile(planner.slot_mean.value, (32, 1))
    survival[:2] = survival_of(logits_for(2, 0.0), ONES[0])
    expected = choose_budget(survival, many.step_times)
    assert decision.budget == expected.budget
    assert decision.expected_tokens == pytest.approx(expected.expected_tokens)
    # Taking strangers for certain, as upstream does, would verify nearly everything.
    survival[2:] = 1.0
    assert choose_budget(survival, many.step_times).budget > 2 * decision.budget


def test_few_strangers_are_no_burst() -> None:
    planner = Planner(PlannerConfig(), GAMMA, 64)
    drive(planner, view(8, affine(8)), 1.0, steps=10)
    assert planner.decide(view(10, affine(10))).reason == ""
    assert planner.fallbacks["no_history"] == 2 * 8 + 2


@pytest.mark.parametrize(("drafts", "budget"), [(None, 3 * GAMMA), (2, 6), (99, 3 * GAMMA), (0, 0)])
def test_without_a_cost_model_a_fixed_number_is_verified(drafts: int | None, budget: int) -> None:
    planner = Planner(PlannerConfig(verify_drafts=drafts), GAMMA, 8)
    decision = planner.decide(view(3, None))
    assert (decision.draft, decision.budget, decision.reason) == (budget > 0, budget, "no_cost_model")
    assert planner.fallbacks == {"no_cost_model": 1}


@pytest.mark.parametrize("broken", ["short", "nan", "zero", "plain"])
def test_costs_that_cannot_be_true_lead_to_a_plain_step(broken: str) -> None:
    planner, costs = Planner(PlannerConfig(), GAMMA, 8), affine(2)
    drive(planner, view(2, costs), 2.0, steps=5)
    times = costs.step_times.copy()
    times[4] = {"nan": np.nan, "zero": 0.0}.get(broken, times[4])
    bad = replace(
        costs,
        step_times=times[:-1] if broken == "short" else times,
        plain_s=np.nan if broken == "plain" else costs.plain_s,
    )
    with np.errstate(divide="ignore"):
        decision = planner.decide(view(2, bad))
    assert (decision.draft, decision.budget, decision.reason) == (False, 0, "out_of_range")
    assert planner.decide(view(2, costs)).draft
    assert planner.fallbacks["out_of_range"] == 1


def test_calibration_drift_replaces_confidences_by_observed_acceptance() -> None:
    planner, costs = Planner(PlannerConfig(), GAMMA, 8), affine(2, per_token_s=1e-6)
    drive(planner, view(2, costs), 8.0, steps=5)
    empirical = np.array([0.5, 0.25, 0.1, 0.0, 0.0], dtype=np.float32)
    step = replace(view(2, costs), calibration_ok=False, empirical=empirical)
    decision = planner.decide(step)
    assert decision.reason == "calibration_drift"
    assert decision.expected_tokens == pytest.approx(2 + 2 * 0.85)
    assert decision.budget == 6
    unobserved = planner.decide(replace(step, empirical=None))
    assert unobserved.expected_tokens == pytest.approx(2 + 2 * float(planner.slot_mean.value.sum()), rel=1e-4)
    assert planner.fallbacks["calibration_drift"] == 2
    assert planner.decide(view(2, costs)).reason == ""


def test_room_and_the_largest_budget_bound_k() -> None:
    planner, costs = Planner(PlannerConfig(), GAMMA, 8), affine(3, per_token_s=1e-6)
    step = replace(view(3, costs), room=np.array([0, 2, GAMMA]))
    bounded = drive(planner, step, 3.0, steps=6)[-1]
    survival = survival_of(logits_for(1, 3.0), ONES[0])[0]
    assert bounded.budget == 2 + GAMMA
    assert bounded.expected_tokens == pytest.approx(3 + survival[:2].sum() + survival.sum(), rel=1e-5)
    planner.configure(PlannerConfig(max_budget=4))
    assert planner.decide(step).budget == 4
    full = planner.decide(replace(step, room=np.zeros(3, dtype=np.int64)))
    assert (full.draft, full.budget, full.reason) == (False, 0, "no_room")


def test_an_empty_batch_is_nothing_to_decide() -> None:
    planner = Planner(PlannerConfig(), GAMMA, 8)
    decision = planner.decide(view(0, affine(0)))
    assert (decision.draft, decision.budget, decision.reason) == (False, 0, "")
    assert not planner.fallbacks


@pytest.mark.parametrize(
    ("config", "draft", "budget", "reason"),
    [
        (PlannerConfig(policy="static"), True, None, ""),
        (PlannerConfig(policy="static", verify_drafts=3), True, None, ""),
        (PlannerConfig(policy="static", verify_drafts=0), False, 0, ""),
        (PlannerConfig(policy="threshold", threshold=0.5), True, None, ""),
        (PlannerConfig(policy="early-stop"), True, None, "no_cost_model"),
    ],
)
def test_the_other_policies_leave_the_lengths_to_the_device(
    config: PlannerConfig, draft: bool, budget: int | None, reason: str
) -> None:
    decision = Planner(config, GAMMA, 8).decide(view(2, None))
    assert (decision.draft, decision.budget, decision.reason) == (draft, budget, reason)
    assert decision.drafted is None


def test_a_policy_can_change_between_steps_and_finds_its_history() -> None:
    planner, costs = Planner(PlannerConfig(policy="static"), GAMMA, 8), affine(2)
    drive(planner, view(2, costs), 1.0, steps=5)
    planner.configure(PlannerConfig())
    decision = planner.decide(view(2, costs))
    assert decision.reason == ""
    assert decision.budget is not None


def test_confidences_that_arrive_a_step_late_are_read_at_the_same_age() -> None:
    def run(late: bool) -> list[Decision]:
        planner, decisions = Planner(PlannerConfig(), GAMMA, 8), []
        waiting: list[tuple[int, NDArray[np.float32]]] = []
        for i in range(8):
            decisions.append(planner.decide(view(2, affine(2))))
            waiting.append((decisions[-1].step, logits_for(2, float(i))))
            if not late or i:
                step, logits = waiting.pop(0)
                planner.publish(ids(2), ids(2) * 0, logits, step)
        return decisions

    assert_array_equal([d.expected_tokens for d in run(False)], [d.expected_tokens for d in run(True)])


def test_padding_of_a_tier_is_filled() -> None:
    planner, costs = Planner(PlannerConfig(), GAMMA, 8), affine(2, per_token_s=0.2, draft_s=0.01)
    loose = drive(planner, view(2, costs), -0.2, steps=6)[-1]
    assert loose.budget is not None
    tier = 2 + loose.budget + 1
    costs = StepCosts(costs.plain_s, costs.step_times, 0.0, np.array([tier]))
    assert planner.decide(view(2, costs)).budget == loose.budget + 1
