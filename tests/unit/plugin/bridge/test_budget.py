"""SGLang's real verify planner with our budget in it: K, lengths, lag, strangers, broken and late confidences."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sglang")

from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.allocate import admit
from sgl_dspark.planner.config import PlannerConfig
from sgl_dspark.planner.policy import Planner
from sgl_dspark.planner.step import StepCosts, StepView
from sgl_dspark.sps.fit import fit
from tests.support.bridge_world import END, GAMMA, PRICED, ROWS, BridgeWorld, Request

WAYS = [
    pytest.param({}, id="ring"),
    pytest.param({"ring": False}, id="buffer"),
    pytest.param({"ring": False, "overlap": False}, id="no overlap"),
]
GOOD, POOR = [0.9, 0.85, 0.8], [0.5, 0.4, 0.3]


class Reference:
    """Our own policy, told every step's confidences as soon as they exist; it reads them two steps later itself."""

    def __init__(self, config: PlannerConfig) -> None:
        self.planner, self.model = Planner(config, GAMMA, ROWS), fit(PRICED)

    def budget(self, slots: np.ndarray, generations: np.ndarray) -> int:
        times = self.model.step_times(len(slots), GAMMA, 20 * len(slots))
        costs = StepCosts(float(times[0]), times)
        view = StepView(slots, generations, costs, np.ones((2, GAMMA), np.float32))
        budget = self.planner.decide(view).budget
        assert budget is not None
        return budget

    def publish(self, slots: np.ndarray, generations: np.ndarray, confidence: np.ndarray) -> None:
        logits = np.log(confidence) - np.log1p(-confidence)
        self.planner.publish(slots, generations, logits.astype(np.float32))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_budget_and_lengths_are_what_our_own_policy_chooses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: dict[str, bool], seed: int
) -> None:
    world = BridgeWorld(monkeypatch, tmp_path, **way)
    world.scheduler.allocator.probes.max_share = 0.0
    reference = Reference(PlannerConfig(min_gain=-1.0, keep_gain=-1.0))
    random, chosen = np.random.default_rng(seed), set()
    for step in range(60):
        if step % 7 == 3:
            # Somebody leaves, somebody comes, perhaps into the same row.
            world.requests.pop(int(random.choice(sorted(world.requests))))
            for row in random.choice(np.arange(1, ROWS), 2, replace=False).tolist():
                world.seat(row)
        slots = np.array(sorted(world.requests))
        generations = world.pool.req_generation.numpy()[slots].copy()
        confidence = random.uniform(0.05, 0.95, (len(slots), GAMMA)).astype(np.float32)
        budget, lens = world.step(confidence, [0] * len(slots))
        assert budget == reference.budget(slots, generations)
        survival = np.cumprod(confidence, axis=1)
        assert lens == (admit(survival, budget) + 1).tolist()
        reference.publish(slots, generations, confidence)
        chosen.add(budget / (len(slots) * GAMMA))
    # The cost table is not flat and the answer is not one and the same.
    assert len(chosen) > 10
    assert max(chosen) < 1.0


@pytest.mark.parametrize("way", WAYS)
def test_confidences_decide_two_steps_later_and_no_sooner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: dict[str, bool]
) -> None:
    budgets = []
    for confidence in (GOOD, POOR):
        world = BridgeWorld(monkeypatch, tmp_path, PlannerConfig(smoothing_rows=0.0), **way)
        budgets.append([world.step([confidence] * 2)[0] for _ in range(5)])
    good, poor = budgets
    assert good[:2] == poor[:2]
    assert all(high > low for high, low in zip(good[2:], poor[2:], strict=True))


def test_new_requests_are_taken_for_the_running_mean_and_never_for_certain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = BridgeWorld(monkeypatch, tmp_path)
    for _ in range(40):
        world.step([POOR, POOR], [0, 0])
    mean = world.scheduler.planner.slot_mean.value
    assert mean == pytest.approx(np.cumprod(POOR), abs=0.05)
    for row in range(3, 11):
        world.seat(row)
    budget, _ = world.step([POOR] * 10, [0] * 10)
    # SGLang would take the eight strangers for certain and verify at least their 24 drafts.
    assert budget < 10
    assert world.scheduler.state()["fallbacks"]["burst"] == 1


def test_a_row_that_changed_hands_lends_nothing_to_its_next_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SGLang counts a row as its occupant's own as soon as any other request's step was relayed."""
    world = BridgeWorld(monkeypatch, tmp_path)
    for _ in range(6):
        world.step([GOOD, GOOD], [3, 3])
    del world.requests[2]
    # Allocated while its prefill still runs: two decode steps of the other request are relayed meanwhile.
    world.pool.req_generation[2] += 1
    for _ in range(3):
        world.step([GOOD], [3])
    world.requests[2] = Request()
    before = world.scheduler.planner.fallbacks["slot_reused"]
    world.step([GOOD, GOOD], [3, 3])
    assert world.scheduler.planner.fallbacks["slot_reused"] == before + 1


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -0.1, 1.1])
def test_a_confidence_that_is_none_counts_and_falls_back_to_the_mean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: float
) -> None:
    world = BridgeWorld(monkeypatch, tmp_path)
    sound, hurt = [GOOD, POOR], [[0.9, broken, 0.8], POOR]
    for confidence in (sound, sound, hurt, sound, sound, sound):
        budget, _ = world.step(confidence, [1, 0])
        assert 0 < budget < 2 * GAMMA
    state = world.scheduler.state()
    assert state["fallbacks"]["nan_confidence"] == 1
    # And is not recorded as what the draft said.
    assert world.scheduler.rounds.count == 2 * 4 - 1


def test_a_copy_that_is_late_counts_and_leaves_older_confidences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = BridgeWorld(monkeypatch, tmp_path)
    for _ in range(6):
        world.step([GOOD, POOR], [1, 0])
    assert world.ring is not None
    world.ring.arrived = False
    usual, _ = world.step([GOOD, POOR], [1, 0])
    assert 0 < usual < 2 * GAMMA
    world.ring.arrived = True
    assert world.step([GOOD, POOR], [1, 0])[0] == usual
    assert world.scheduler.state()["fallbacks"]["confidence_late"] == 1
    assert world.scheduler.state()["fallbacks"].get("stale_history") is None


def test_what_is_older_than_its_bound_is_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = BridgeWorld(monkeypatch, tmp_path, PlannerConfig(max_age=3))
    for _ in range(4):
        world.step([GOOD, POOR], [1, 0])
    paused = world.requests.pop(2)
    for _ in range(5):
        world.step([GOOD], [1])
    world.requests[2] = paused
    world.step([GOOD, POOR], [1, 0])
    assert world.scheduler.state()["fallbacks"]["stale_history"] == 1


def test_without_step_times_whole_blocks_are_verified_and_it_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = BridgeWorld(monkeypatch, tmp_path, priced=False)
    assert world.step([GOOD, POOR], [1, 0]) == (2 * GAMMA, [GAMMA + 1] * 2)
    assert world.scheduler.state()["fallbacks"]["no_cost_model"] == 1


def test_a_prefill_in_between_is_not_charged_to_the_step_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = BridgeWorld(monkeypatch, tmp_path)
    world.step([GOOD, POOR], [1, 0])
    prefill = world.batch()
    prefill.is_extend_in_batch = True
    world.budget.prepare(world.planner, prefill, world.future_map)
    world.step([GOOD, POOR], [1, 0])
    assert world.scheduler.state()["totals"]["timed_steps"] == 0
    world.step([GOOD, POOR], [1, 0])
    assert world.scheduler.state()["totals"]["timed_steps"] == 1


def test_rounds_are_recorded_with_their_own_confidences_and_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = BridgeWorld(monkeypatch, tmp_path, PlannerConfig("static"))
    steps = [[[0.5, 0.6, 0.7], [0.2, 0.3, 0.4]], [[0.8, 0.8, 0.8], [0.1, 0.1, 0.1]]]
    verdicts: deque[list[int]] = deque()
    for confidence in [*steps, *steps[:1] * 2]:
        world.step(confidence)
        verdicts.append([len(verdicts), 3])
        if len(verdicts) > 1:
            # Under overlap a verdict is handed over when the next step has been launched.
            world.scheduler.learn(verdicts[len(verdicts) - 2])
    reply = world.scheduler.rounds
    assert reply.count == 4
    logits, accepted = reply._logits[:4], reply._accepted[:4]
    flat = np.array(steps, np.float32).reshape(4, GAMMA)
    assert logits == pytest.approx(np.log(flat) - np.log1p(-flat), rel=1e-4, abs=1e-6)
    assert accepted.tolist() == [0, 3, 1, 3]


def test_what_follows_an_accepted_end_of_the_answer_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = BridgeWorld(monkeypatch, tmp_path, PlannerConfig("static"))
    world.step([GOOD, GOOD])
    world.scheduler._launched[0].result.next_token_ids[1] = END
    world.scheduler.learn([3, 3])
    for _ in range(2):
        world.step([GOOD, GOOD], [0, 0])
    assert world.scheduler.rounds._verified[:2].tolist() == [2, 3]
    assert world.scheduler.rounds._accepted[:2].tolist() == [2, 3]


def test_a_verdict_that_fits_no_step_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = BridgeWorld(monkeypatch, tmp_path)
    world.step([GOOD, POOR])
    world.step([GOOD, POOR])
    world.scheduler.learn([1])
    world.scheduler.learn([1, 1])
    assert world.scheduler.state()["fallbacks"]["verdict_without_step"] == 2
    for _ in range(8):
        world.step([GOOD, POOR])
    assert world.scheduler.state()["fallbacks"]["step_without_verdict"] == 1


def test_sglangs_own_override_of_the_budget_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = BridgeWorld(monkeypatch, tmp_path)
    world.planner.set_forced_budget_frac(0.5)
    assert world.step([GOOD, POOR])[0] == GAMMA
    world.planner.set_forced_budget_frac(None)
    assert world.step([GOOD, POOR])[0] != GAMMA
    decision = world.planner.take_budget_decision()
    assert decision is not None
    assert decision.predicted_step_seconds > 0
    assert world.planner.take_budget_decision() is None


def test_only_policies_that_sglang_can_follow_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for config in (PlannerConfig("threshold"), PlannerConfig("early-stop"), PlannerConfig("static", verify_drafts=1)):
        with pytest.raises(ConfigError, match="bridge mode"):
            BridgeWorld(monkeypatch, tmp_path, config)
    world = BridgeWorld(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match="bridge mode serves adaptive and static, not threshold"):
        world.scheduler.configure({"dspark_policy_policy": 1})
    assert world.scheduler.state()["policy"]["policy"] == "adaptive"
    world.scheduler.configure({"dspark_policy_policy": 0})
    assert world.step([GOOD, POOR])[0] == 2 * GAMMA
    world.scheduler.configure({"dspark_policy_policy": 3, "dspark_policy_max_budget": 1})
    assert world.step([GOOD, POOR])[0] <= 1
