"""The device's ranking is the planner's, and the lengths that it gives never depend on the drafts they are for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dspark_sglang import allocate
from dspark_sglang.allocation import Allocator
from sgl_dspark.calibration.online import OnlineCalibration
from sgl_dspark.planner.allocate import admit
from sgl_dspark.planner.config import PlannerConfig
from sgl_dspark.planner.step import Decision, StepCosts
from sgl_dspark.sampling.block import DraftBlock

SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5))
# Few values, so that ties are common; infinities stand for drafts that may not be verified.
LOGITS = st.sampled_from([-np.inf, -2.0, -0.5, 0.0, 0.0, 0.7, 3.0, np.inf])


def logits_of(shape: tuple[int, int]) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.float32, shape, elements=LOGITS)


@given(SHAPES.flatmap(logits_of), st.integers(0, 40))
def test_the_device_admits_what_the_planner_admits(logits: np.ndarray, budget: int) -> None:
    ones, zeros = torch.ones(logits.shape), torch.zeros(logits.shape)
    survival = allocate.survival_of(torch.from_numpy(logits), ones, zeros)
    assert bool((survival[:, 1:] <= survival[:, :-1]).all())
    assert allocate.admit(survival, budget).tolist() == admit(survival.numpy(), budget).tolist()


def test_a_confidence_that_is_not_a_number_admits_nothing_from_there_on() -> None:
    logits = torch.tensor([[1.0, float("nan"), 5.0]])
    survival = allocate.survival_of(logits, torch.ones(1, 3), torch.zeros(1, 3))
    assert survival[0, 1:].tolist() == [0.0, 0.0]
    assert allocate.admit(survival, 3).tolist() == [1]


def step_of(rooms: list[int], decision: Decision, costs: StepCosts | None, number: int = 1) -> Any:
    count = len(rooms)
    drafted = None if decision.drafted is None else torch.from_numpy(np.flatnonzero(decision.drafted))
    return SimpleNamespace(
        number=number,
        slots=np.arange(count),
        kinds=np.zeros(count, np.int64),
        room=np.array(rooms),
        decision=decision,
        drafted=drafted,
        costs=costs,
        lens=None,
        expected=None,
    )


def block_of(logits: np.ndarray) -> DraftBlock:
    return DraftBlock(torch.zeros(logits.shape, dtype=torch.int64), torch.from_numpy(logits))


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, list[int], Decision, PlannerConfig, StepCosts]:
    requests, gamma = draw(SHAPES)
    logits = draw(logits_of((requests, gamma)))
    rooms = draw(st.lists(st.integers(0, gamma), min_size=requests, max_size=requests))
    policy = draw(st.sampled_from(["static", "threshold", "early-stop", "adaptive"]))
    drafts = draw(st.none() | st.integers(0, gamma))
    rows = draw(st.none() | st.lists(st.booleans(), min_size=requests, max_size=requests))
    drafted = np.array(rows) if rows is not None and policy == "adaptive" else None
    budget = draw(st.integers(0, requests * gamma)) if policy == "adaptive" else None
    times = np.cumsum(np.array(draw(st.lists(st.floats(0.1, 2.0), min_size=31, max_size=31))))
    costs = StepCosts(1.0, times[: requests * gamma + 1])
    config = PlannerConfig(policy, verify_drafts=drafts, threshold=draw(st.sampled_from([0.0, 0.3, 0.5])))
    return logits, rooms, Decision(1, True, budget, drafted), config, costs


@given(cases())
def test_lengths_stay_within_room_and_budget(case: tuple[Any, ...]) -> None:
    logits, rooms, decision, config, costs = case
    gamma = logits.shape[1]
    allocator = Allocator(gamma, OnlineCalibration(gamma))
    allocator.probes.max_share = 0.0
    step = step_of(rooms, decision, costs)
    allocator.allocate(step, block_of(logits), config)
    limits = np.array(rooms) if decision.drafted is None else np.where(decision.drafted, rooms, 0)
    assert bool((step.lens <= limits).all() and (step.lens >= 0).all())
    if decision.budget is not None:
        assert int(step.lens.sum()) <= decision.budget
    if config.policy == "static":
        wanted = gamma if config.verify_drafts is None else config.verify_drafts
        assert step.lens.tolist() == np.minimum(limits, wanted).tolist()
    assert bool((step.expected >= 1.0).all() and (step.expected <= 1.0 + step.lens + 1e-5).all())


@given(cases(), st.data())
def test_a_slot_is_not_moved_by_what_its_own_draft_could_change(case: tuple[Any, ...], data: st.DataObject) -> None:
    """Whether slot j is verified must not change with the confidences after it, which depend on its draft."""
    logits, rooms, decision, config, costs = case
    requests, gamma = logits.shape
    row, slot = data.draw(st.integers(0, requests - 1)), data.draw(st.integers(0, gamma - 1))
    other = logits.copy()
    other[row, slot + 1 :] = data.draw(logits_of((gamma,)))[: gamma - slot - 1]
    verified = []
    for values in (logits, other):
        allocator = Allocator(gamma, OnlineCalibration(gamma))
        # Enough earlier steps that a probe falls due; whom it chooses is a matter of counts.
        allocator.probes.credit = 2.0 * gamma
        step = step_of(rooms, decision, costs, number=7)
        allocator.allocate(step, block_of(values), config)
        verified.append(bool(step.lens[row] > slot))
    assert verified[0] == verified[1]
