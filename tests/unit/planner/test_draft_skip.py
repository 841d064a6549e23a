"""Not drafting: whole steps and single requests, with probes and the ways back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sgl_dspark.planner.policy import Planner, PlannerConfig
from tests.support.planner_steps import GAMMA, affine, drive, ids, logits_for, view

HOPELESS, EASY = -4.0, 2.0


def planner_with(**settings: float) -> Planner:
    return Planner(PlannerConfig(**settings), GAMMA, 64)  # type: ignore[arg-type]


def skipping(requests: int = 4, **settings: float) -> Planner:
    """Give a planner that has learned that drafting does not pay and has just stopped."""
    planner = planner_with(**settings)
    decisions = drive(planner, view(requests, affine(requests)), HOPELESS, steps=4)
    assert [d.draft for d in decisions] == [True, True, False, False]
    return planner


def test_drafts_that_do_not_pay_are_skipped_and_named() -> None:
    planner = skipping()
    decision = planner.decide(view(4, affine(4)))
    assert (decision.draft, decision.budget, decision.reason) == (False, 0, "low_gain")
    assert decision.gain < 0
    assert (decision.expected_tokens, decision.step_time_s) == (4.0, affine(4).plain_s)
    assert planner.fallbacks["low_gain"] == 3
    assert planner.totals["plain"] == 3


def test_nothing_is_skipped_on_the_strength_of_the_prior_alone() -> None:
    planner = planner_with(prior_confidence=0.01)
    decision = planner.decide(view(4, affine(4)))
    assert decision.gain < 0
    assert decision.draft


def test_hysteresis_holds_a_small_gain_in_either_state() -> None:
    # Draft cost decides the gain; at 'between' it lies between the two bounds.
    planner = planner_with(min_gain=0.1, keep_gain=0.0, probe_interval=200)
    states = {}
    for name, draft_s in (("good", 0.2), ("between", 0.6), ("bad", 3.0), ("between again", 0.6), ("good again", 0.2)):
        last = drive(planner, view(4, affine(4, draft_s=draft_s)), 0.3, steps=8)[-1]
        states[name] = (last.draft, round(last.gain, 3))
    assert 0 < states["between"][1] < 0.1
    assert states["between"][1] == states["between again"][1]
    assert [draft for draft, _ in states.values()] == [True, True, False, False, True]


def test_probes_are_rare_counted_and_their_cost_is_known() -> None:
    planner = planner_with(probe_interval=4, probe_interval_max=16)
    decisions = drive(planner, view(4, affine(4)), HOPELESS, steps=400)
    probes = [d for d in decisions if d.probe]
    assert {d.reason for d in probes} == {"probe"}
    assert planner.totals["probes"] == planner.fallbacks["probe"] == len(probes)
    assert 398 // 17 <= len(probes) <= 398 // 17 + 2
    lost = sum(d.step_time_s - d.expected_tokens / 4 * affine(4).plain_s for d in probes)
    assert planner.probe_cost_s == pytest.approx(lost)
    assert planner.totals["drafted"] == 2 + len(probes)


def test_cheaper_drafting_is_taken_up_at_once() -> None:
    planner = skipping()
    cheap = replace(affine(4), plain_s=2.0)
    decision = planner.decide(view(4, cheap))
    assert (decision.draft, decision.probe, decision.reason) == (True, False, "")


def test_a_load_that_falls_is_answered_at_once() -> None:
    planner, busy = planner_with(), view(32, affine(32, per_token_s=0.5, draft_row_s=0.1))
    assert not drive(planner, busy, 0.3, steps=10)[-1].draft
    # The same survival under the costs of two requests that are still there.
    decision = planner.decide(view(2, affine(2, per_token_s=0.01)))
    assert (decision.draft, decision.probe) == (True, False)
    assert decision.budget is not None
    assert decision.budget > 0


def test_a_new_request_is_not_held_to_what_the_last_one_was_like() -> None:
    planner = planner_with()
    drive(planner, view(8, affine(8)), EASY, steps=100)
    assert not drive(planner, view(1, affine(1), generation=1), HOPELESS, steps=60)[-1].draft
    decision = planner.decide(view(1, affine(1), generation=2))
    assert (decision.draft, decision.probe) == (True, False)


@pytest.mark.parametrize("requests", [1, 4, 32])
def test_acceptance_that_recovers_is_found_by_the_next_probes(requests: int) -> None:
    planner = planner_with(probe_interval=4, probe_interval_max=32)
    # Drafting is dear: with a single request one good probe does not convince, but is repeated at once.
    step = view(requests, affine(requests, per_token_s=0.01, draft_s=2.0))
    drive(planner, step, HOPELESS, steps=200)
    decisions = drive(planner, step, EASY, steps=90)
    back = next(i for i, d in enumerate(decisions) if d.draft and not d.probe)
    assert back <= 33 + 4 * planner.history.lag
    assert all(d.draft for d in decisions[back:])


def test_no_new_evidence_leaves_the_prediction_as_it_is() -> None:
    planner, step = planner_with(probe_interval=50), view(1, affine(1, draft_s=2.0))
    drive(planner, step, 0.0, steps=1)
    gains = [d.gain for d in drive(planner, step, -1.0, steps=40)]
    assert not planner.decide(step).draft
    assert len(set(gains[5:])) == 1


def test_a_request_of_which_nothing_is_known_is_drafted() -> None:
    planner, logits = planner_with(row_patience=1, probe_interval=200), logits_for(4, HOPELESS)
    logits[0], logits[3] = 4.0, np.nan
    last = drive(planner, view(4, affine(4, per_token_s=0.2, draft_s=0.01, draft_row_s=0.01)), logits, steps=20)[-1]
    assert last.reason == "nan_confidence"
    assert last.drafted is not None
    assert_array_equal(last.drafted, [True, False, False, True])


def test_a_hopeless_request_is_left_out_where_that_saves_time() -> None:
    planner, costs = planner_with(row_patience=3, probe_interval=64), affine(4, draft_row_s=0.05)
    logits = logits_for(4, EASY)
    logits[2] = HOPELESS
    decisions = drive(planner, view(4, costs), logits, steps=20)
    masks = [d.drafted for d in decisions]
    # Known from step 3 on, who is in the slot from then on, and three steps of patience.
    assert all(m is None for m in masks[:6])
    last = decisions[-1]
    assert last.drafted is not None
    assert_array_equal(last.drafted, [True, True, False, True])
    assert last.budget is not None
    assert last.budget <= 3 * GAMMA
    assert last.step_time_s == pytest.approx(costs.step_times[last.budget] - 0.05)
    assert planner.totals["rows_left_out"] == sum(m is not None for m in masks)


def test_no_request_is_left_out_where_that_saves_nothing() -> None:
    planner, logits = planner_with(row_patience=1), logits_for(4, EASY)
    logits[2] = HOPELESS
    assert all(d.drafted is None for d in drive(planner, view(4, affine(4)), logits, steps=30))


def test_a_request_left_out_is_probed_and_comes_back_when_it_improves() -> None:
    planner = planner_with(row_patience=2, probe_interval=6, probe_interval_max=6)
    step, logits = view(4, affine(4, draft_row_s=0.05)), logits_for(4, EASY)
    logits[0] = HOPELESS
    drive(planner, step, logits, steps=12)
    logits[0] = EASY
    decisions = drive(planner, step, logits, steps=12)
    drafted = [d.drafted is None or bool(d.drafted[0]) for d in decisions]
    first = drafted.index(True)
    assert planner.totals["row_probes"] >= 1
    assert first < 7
    assert all(drafted[first + planner.history.lag :])


def test_a_request_left_out_comes_back_at_once_when_the_budget_reaches_it() -> None:
    planner, logits = planner_with(row_patience=2, probe_interval=200), logits_for(4, 4.0)
    logits[0] = -1.0
    last = drive(planner, view(4, affine(4, per_token_s=0.3, draft_row_s=0.05)), logits, steps=20)[-1]
    assert last.drafted is not None
    assert not last.drafted[0]
    assert planner.decide(view(4, affine(4, per_token_s=1e-6, draft_row_s=0.05))).drafted is None


def test_a_new_occupant_of_a_slot_left_out_is_drafted() -> None:
    planner, logits = planner_with(row_patience=2, probe_interval=200), logits_for(4, EASY)
    logits[1] = HOPELESS
    step = view(4, affine(4, draft_row_s=0.05))
    assert drive(planner, step, logits, steps=12)[-1].drafted is not None
    fresh = replace(step, generations=np.array([0, 1, 0, 0]))
    assert planner.decide(fresh).drafted is None


def test_every_row_is_drafted_in_a_probe() -> None:
    planner = planner_with(probe_interval=2, probe_interval_max=4, row_patience=1)
    decisions = drive(planner, view(4, affine(4, draft_row_s=0.05)), HOPELESS, steps=40)
    assert any(d.probe for d in decisions)
    assert all(d.drafted is None for d in decisions if d.probe)


def test_ids_are_those_of_the_engine() -> None:
    # Slots come in any order and need not be dense.
    planner = planner_with()
    step = replace(view(3, affine(3)), slots=np.array([40, 7, 63]), generations=ids(3))
    assert drive(planner, step, EASY, steps=5)[-1].reason == ""
