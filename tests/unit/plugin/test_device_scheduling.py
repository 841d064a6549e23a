"""Steps that the device ranks: what it is told before, and what is learned once its choice has arrived."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sglang")
from dspark_sglang.allocation import DevicePlan
from sgl_dspark.planner.config import PlannerConfig
from sgl_dspark.sampling.block import DraftBlock
from tests.support.scheduling_world import GAMMA, World


def ranked(world: World, lens: list[int], accepted: list[int]) -> Any:
    """Run a step up to its verdict; the device verifies ``lens`` drafts."""
    step = world.begin()
    plan = world.scheduler.rank_on_device(step)
    assert plan is not None
    survival = torch.full((2, GAMMA), 0.5).cumprod(1)
    block = DraftBlock(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.zeros(2, GAMMA))
    world.scheduler.launched(step, torch.tensor(lens), survival)
    verdict: Any = SimpleNamespace(
        out_tokens=torch.zeros(2, GAMMA + 1, dtype=torch.int64), accept_lens=torch.tensor(accepted) + 1
    )
    world.scheduler.end(step, block, verdict)
    return step


def test_a_step_is_counted_once_its_choice_is_known(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig(policy="static"))
    first = ranked(world, [3, 1], [2, 1])
    assert first.lens is None
    assert world.scheduler.ledger.totals["steps"] == 0
    second = ranked(world, [0, 2], [0, 0])
    # The second has begun: the first's time is known, and waits for its lengths.
    assert first.took is not None
    assert world.scheduler.ledger.totals["timed_steps"] == 0
    world.scheduler.learn([2, 1])
    totals = world.scheduler.ledger.totals
    assert first.lens.tolist() == [3, 1]
    assert totals["steps"] == totals["timed_steps"] == 1
    assert totals["verify_tokens"] == 2 + 4
    assert totals["drafts_accepted"] == 3
    np.testing.assert_allclose(first.expected, [1 + 0.5 + 0.25 + 0.125, 1.5])
    assert world.records().verified.tolist() == [3, 1]
    world.scheduler.learn([0, 0])
    assert second.lens.tolist() == [0, 2]
    assert totals["steps"] == 2


def test_requests_that_were_not_drafted_have_no_lengths(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig(policy="static"))
    step = world.begin()
    step.drafted = torch.tensor([1])
    plan = world.scheduler.rank_on_device(step)
    assert plan is not None
    block = DraftBlock(torch.tensor([[0, 0, 0], [4, 5, 6]]), torch.zeros(2, GAMMA))
    world.scheduler.launched(step, torch.tensor([2]), torch.full((1, GAMMA), 0.5))
    verdict: Any = SimpleNamespace(
        out_tokens=torch.zeros(2, GAMMA + 1, dtype=torch.int64), accept_lens=torch.tensor([1, 2])
    )
    world.scheduler.end(step, block, verdict)
    world.scheduler.learn([0, 1])
    assert step.lens.tolist() == [0, 2]
    assert step.expected.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("config", "budget", "least"),
    [
        (PlannerConfig(policy="static"), 0, [GAMMA, GAMMA]),
        (PlannerConfig(policy="static", verify_drafts=1), 0, [1, 1]),
        (PlannerConfig(policy="adaptive"), None, [0, 0]),
    ],
)
def test_what_the_device_is_told(tmp_path: Path, config: PlannerConfig, budget: int | None, least: list[int]) -> None:
    world = World(tmp_path, config)
    step = world.begin()
    plan = world.scheduler.rank_on_device(step)
    assert plan is not None
    assert plan.budget == (step.decision.budget if budget is None else budget)
    assert plan.least.tolist() == least
    assert plan.most == min(plan.budget + sum(least), int(plan.room.sum()))
    assert all(1 <= bound <= GAMMA + 1 for bound in plan.bounds)
    assert step.verified == plan.most


@pytest.mark.parametrize("policy", ["threshold", "early-stop"])
def test_policies_that_look_at_confidences_stay_on_the_host(tmp_path: Path, policy: Any) -> None:
    world = World(tmp_path, PlannerConfig(policy=policy))
    assert world.scheduler.rank_on_device(world.begin()) is None


def test_several_ranks_stay_on_the_host(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig(policy="static"))
    world.scheduler._ranks._world_size = 2
    step = SimpleNamespace(drafts=True, on_device=None)
    assert world.scheduler.rank_on_device(step) is None  # type: ignore[arg-type]


def test_bounds_hold_whatever_the_device_chooses() -> None:
    plan = DevicePlan(3, np.array([5, 2, 0]), np.array([0, 0, 0]), 3)
    assert plan.bounds == [4, 3, 1]
    assert DevicePlan(0, np.array([5, 2, 0]), np.array([5, 1, 0]), 6).bounds == [6, 2, 1]
