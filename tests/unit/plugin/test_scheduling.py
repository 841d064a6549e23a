"""The worker's scheduler with requests that exist only here: what it learns, and from which step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sglang")

from dspark_sglang.scheduling import MOST_UNLEARNED
from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import PlannerConfig
from tests.support.scheduling_world import CONTEXT, END, GAMMA, PLAIN_DRAFTS, World


def test_rounds_are_recorded_with_the_verdict_on_their_own_step(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static", verify_drafts=2))
    assert world.step(PLAIN_DRAFTS, logit=1.0) == [3, 3]
    assert world.step(PLAIN_DRAFTS, logit=2.0) == [3, 3]
    world.scheduler.learn([2, 0])
    world.scheduler.learn([1, 1])
    records = world.records()
    assert records.logits[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert records.verified.tolist() == [2, 2, 2, 2]
    assert records.accepted.tolist() == [2, 0, 1, 1]


@pytest.mark.parametrize(("correct", "accepted"), [(3, 2), (2, 2), (1, 1), (0, 0)])
def test_slots_behind_a_drafted_end_are_unknown_whether_it_was_accepted_or_not(
    tmp_path: Path, correct: int, accepted: int
) -> None:
    world = World(tmp_path, PlannerConfig("static"))
    world.step([[1, END, 3], [4, 5, 6]])
    world.scheduler.learn([correct, 3])
    assert world.records().verified.tolist() == [2, 3]
    assert world.records().accepted.tolist() == [accepted, 3]


def test_what_an_ended_request_still_produces_teaches_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static"))
    world.step(PLAIN_DRAFTS)
    world.requests[0].over = True
    world.requests[1].is_retracted = True
    world.scheduler.learn([3, 3])
    state = world.scheduler.state()
    assert len(world.records()) == 0
    assert (state["totals"]["rounds"], state["totals"]["live_rounds"], state["totals"]["tokens"]) == (2, 0, 0)


def test_a_verdict_that_fits_no_step_is_dropped_with_all_that_waits(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static"))
    world.step(PLAIN_DRAFTS)
    world.step(PLAIN_DRAFTS)
    world.scheduler.learn([1])
    world.scheduler.learn([1, 1])
    assert len(world.records()) == 0
    assert world.scheduler.state()["fallbacks"]["verdict_without_step"] == 2
    world.step(PLAIN_DRAFTS)
    world.scheduler.learn([1, 1])
    assert len(world.records()) == 2


def test_a_prefill_in_between_is_not_charged_to_the_step_before(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static"))
    world.step(PLAIN_DRAFTS)
    world.scheduler.interrupt(100)
    world.step(PLAIN_DRAFTS)
    assert world.scheduler.state()["totals"]["timed_steps"] == 0
    world.step(PLAIN_DRAFTS)
    assert world.scheduler.state()["totals"]["timed_steps"] == 1


def test_no_draft_is_verified_past_the_end_of_the_context(tmp_path: Path) -> None:
    for name in ("static", "early-stop", "adaptive"):
        world = World(tmp_path, PlannerConfig(name))  # type: ignore[arg-type]
        lens = world.step(PLAIN_DRAFTS, lengths=(CONTEXT - 2, CONTEXT))
        assert lens == [2, 1], name


@pytest.mark.parametrize(
    "config", [PlannerConfig(), PlannerConfig(max_budget=0), PlannerConfig("static", verify_drafts=0)]
)
def test_a_backend_of_equal_lengths_verifies_whole_blocks_whatever_was_decided(
    tmp_path: Path, config: PlannerConfig
) -> None:
    """It takes gamma + 1 rows of every request, so that a plain step would make it read another request's rows."""
    world = World(tmp_path, config, ragged=False, priced=False)
    assert world.step(PLAIN_DRAFTS, logit=-9.0) == [4, 4]
    assert world.step(PLAIN_DRAFTS, lengths=(CONTEXT - 1, CONTEXT)) == [4, 4]


def test_verdicts_that_never_come_do_not_shift_the_later_ones(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static"))
    for _ in range(MOST_UNLEARNED + 1):
        world.step(PLAIN_DRAFTS, logit=1.0)
    world.step(PLAIN_DRAFTS, logit=2.0)
    world.scheduler.learn([1, 1])
    assert world.records().logits[:, 0].tolist() == [2.0, 2.0]
    assert world.scheduler.state()["fallbacks"]["step_without_verdict"] == 1


def test_times_and_tokens_of_a_step_meet_in_either_order(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static"))
    world.step(PLAIN_DRAFTS)
    world.scheduler.learn([1, 2])
    world.step(PLAIN_DRAFTS)
    world.step(PLAIN_DRAFTS)
    world.scheduler.learn([0, 3])
    for decision in world.scheduler.state()["decisions"][:2]:
        assert decision["tokens"] == 5
        assert decision["actual_s"] > 0
        assert decision["predicted_s"] > 0


def test_k_reads_confidences_that_are_two_steps_old_and_no_younger_ones(tmp_path: Path) -> None:
    """Hopeless drafts at step t move K at step t + 2; at t + 1 nobody has read them yet."""
    budgets = []
    for hopeless in (2, 3, 4):
        world = World(tmp_path, PlannerConfig(min_gain=-1.0, keep_gain=-1.0, smoothing_rows=0.0))
        world.requests = world.requests[:1]
        for number in range(1, 6):
            world.step([[1, 2, 3]], logit=-9.0 if number >= hopeless else 4.0)
        budgets.append([d["budget"] for d in world.scheduler.state()["decisions"]])
    # One draft costs nothing here, since nothing smaller than two tokens was measured.
    assert budgets[0][2:] == [3, 1, 1]
    assert budgets[1][2:] == [3, 3, 1]
    assert budgets[2][2:] == [3, 3, 3]


def test_a_policy_can_be_switched_and_nonsense_leaves_it(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig())
    world.scheduler.configure({"dspark_policy_policy": 0, "dspark_policy_verify_drafts": 1})
    assert world.step(PLAIN_DRAFTS) == [2, 2]
    with pytest.raises(ConfigError, match="verify_drafts"):
        world.scheduler.configure({"dspark_policy_verify_drafts": GAMMA + 1})
    assert world.scheduler.planner.config.verify_drafts == 1
    with pytest.raises(ConfigError, match="verify_drafts"):
        World(tmp_path, PlannerConfig("static", verify_drafts=GAMMA + 1))


def test_static_zero_runs_plain_steps(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static", verify_drafts=0))
    assert world.step(PLAIN_DRAFTS) == [1, 1]
    world.scheduler.learn([0, 0])
    totals = world.scheduler.state()["totals"]
    assert (totals["plain_steps"], totals["drafted_steps"], totals["tokens"]) == (1, 0, 2)


def test_the_state_is_plain_json_and_carries_rounds_only_when_asked(tmp_path: Path) -> None:
    import json

    world = World(tmp_path, PlannerConfig())
    for _ in range(4):
        world.step(PLAIN_DRAFTS)
        world.scheduler.learn([1, 2])
    world.scheduler.configure({"dspark_send_rounds_after": 3})
    shown = json.loads(json.dumps(world.scheduler.state(), allow_nan=False))
    assert shown["rounds"]["count"] == 5
    world.scheduler.configure({"dspark_send_rounds_after": -1})
    assert "rounds" not in world.scheduler.state()
    assert shown["totals"]["drafts_verified"] == shown["totals"]["verify_tokens"] - shown["totals"]["rounds"]
    assert shown["survival"][0] == 1.0
    assert np.isfinite(shown["predicted"]["tokens_ratio"])
    world.scheduler.clear_totals()
    assert world.scheduler.state()["totals"]["steps"] == 0


def test_predictions_are_summed_beside_what_they_came_to(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("adaptive"))
    for _ in range(4):
        world.step(PLAIN_DRAFTS)
    for _ in range(4):
        world.scheduler.learn([2, 1])
    totals = world.scheduler.state()["totals"]
    assert totals["ranked_actual_tokens"] == totals["tokens"] == 4 * 5
    survival = np.cumprod(np.full(GAMMA, 1 / (1 + np.exp(-3.0))))
    assert totals["ranked_tokens"] == pytest.approx(4 * 2 * (1 + survival.sum()), rel=1e-5)
    assert totals["planned_actual_tokens"] == 4 * 5
    assert totals["planned_tokens"] > 4 * 2
    assert totals["predicted_actual_s"] == pytest.approx(totals["timed_s"])
    assert totals["predicted_s"] > 0
