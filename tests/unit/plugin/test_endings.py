"""Drafts that an answer cannot use any more: after an end token, and past its last token."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sglang")

from sgl_dspark.planner.config import PlannerConfig, Policy
from tests.support.scheduling_world import END, GAMMA, PLAIN_DRAFTS, Request, World


@pytest.mark.parametrize("policy", ["adaptive", "early-stop", "threshold"])
def test_nothing_is_drafted_for_a_request_that_has_met_an_end_token(tmp_path: Path, policy: Policy) -> None:
    world = World(tmp_path, PlannerConfig(policy))
    # What lies behind the emitted tokens does not count.
    assert world.step(PLAIN_DRAFTS, emitted=[[7, END], [8]]) == [4, 4]
    step = world.begin()
    assert step.drafted is not None
    assert step.drafted.tolist() == [1]
    assert step.room.tolist() == [0, GAMMA]


def test_a_fixed_length_is_verified_of_every_request(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("static", verify_drafts=2))
    world.requests[1] = Request(prompt=28, limit=4)
    assert world.step(PLAIN_DRAFTS, emitted=[[7, END], [8]]) == [3, 3]
    assert world.step(PLAIN_DRAFTS) == [3, 3]


def test_an_end_token_ends_neither_a_request_that_ignores_it_nor_the_next_in_its_slot(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("adaptive"))
    world.requests[0] = Request(ignore_eos=True)
    world.step(PLAIN_DRAFTS, emitted=[[END], [END]])
    assert world.begin().room.tolist() == [GAMMA, 0]
    world.pool.req_generation[2] += 1
    world.requests[1] = Request()
    assert world.begin().room.tolist() == [GAMMA, GAMMA]


@pytest.mark.parametrize(("length", "room"), [(20, 3), (26, 2), (27, 1), (28, 0), (29, 0), (40, 0)])
def test_no_more_drafts_are_verified_than_the_answer_can_still_use(tmp_path: Path, length: int, room: int) -> None:
    """20 prompt tokens and an answer of at most 10: with 26 committed and the anchor, 3 tokens are left."""
    world = World(tmp_path, PlannerConfig("adaptive"))
    world.requests[0] = Request(prompt=20, limit=10)
    assert world.begin((length, 30)).room.tolist() == [room, GAMMA]


def test_a_slot_takes_the_limit_of_its_next_occupant(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("adaptive"))
    world.requests[0] = Request(prompt=20, limit=1)
    assert world.begin().room.tolist() == [0, GAMMA]
    world.pool.req_generation[1] += 1
    world.requests[0] = Request(prompt=20, limit=50)
    assert world.begin().room.tolist() == [GAMMA, GAMMA]


def test_a_step_in_which_every_answer_ends_is_a_plain_one(tmp_path: Path) -> None:
    world = World(tmp_path, PlannerConfig("adaptive"))
    world.step(PLAIN_DRAFTS, emitted=[[END], [7, END]])
    step = world.begin()
    assert not step.drafts
    assert step.decision.reason == "no_room"
