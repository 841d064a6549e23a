"""The worker's scheduler with requests that exist only here: what it learns, and from which step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sglang")

from dspark_sglang.config import SchedulingConfig
from dspark_sglang.knowledge import Knowledge
from dspark_sglang.sampling_bridge import RowSampling
from dspark_sglang.scheduling import MOST_UNLEARNED, VerifyScheduler
from dspark_sglang.step import Step
from sgl_dspark.calibration.records import RecordSet, from_wire
from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import PlannerConfig, Policy
from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sps.fit import Probe
from sgl_dspark.sps.store import Fingerprint

GAMMA, CONTEXT, END = 3, 64, 9


class Request:
    def __init__(self, prompt: int = 10, limit: int | None = None, ignore_eos: bool = False) -> None:
        self.over = False
        self.is_retracted = False
        self.origin_input_ids = [0] * prompt
        self.sampling_params = SimpleNamespace(max_new_tokens=limit, ignore_eos=ignore_eos)

    def finished(self) -> bool:
        return self.over


class World:
    """A scheduler and the requests that it serves."""

    def __init__(self, tmp_path: Path, config: PlannerConfig, *, ragged: bool = True, priced: bool = True) -> None:
        (tmp_path / "model.safetensors").write_bytes(b"draft")
        self.pool = SimpleNamespace(
            req_to_token=torch.zeros(9, CONTEXT), req_generation=torch.ones(9, dtype=torch.int64)
        )
        model = SimpleNamespace(context_len=CONTEXT, hf_eos_token_id={END})
        runner: Any = SimpleNamespace(req_to_token_pool=self.pool, model_config=model)
        self.knowledge = Knowledge(SchedulingConfig(config, profile="off"), GAMMA, str(tmp_path), {})
        if priced:
            probes = [Probe("verify", 1, tokens, 32, 0.01 + 1e-5 * tokens) for tokens in (2, 4, 16, 32)]
            self.knowledge.start(lambda: probes, Fingerprint({}), tmp_path / "unused")
        self.scheduler = VerifyScheduler(config, self.knowledge, runner, gamma=GAMMA, ragged=ragged)
        self.requests = [Request(), Request()]

    def begin(self, lengths: tuple[int, ...] = (20, 30)) -> Step:
        count = len(self.requests)
        batch: Any = SimpleNamespace(
            reqs=self.requests,
            req_pool_indices_cpu=torch.arange(1, count + 1),
            seq_lens_cpu=torch.tensor(lengths[:count]),
        )
        return self.scheduler.begin(batch, RowSampling.greedy(count, torch.device("cpu")))

    def step(
        self,
        drafts: list[list[int]],
        logit: float = 3.0,
        lengths: tuple[int, ...] = (20, 30),
        emitted: list[list[int]] | None = None,
    ) -> list[int]:
        """Run a step up to its verdict and return the verify lengths."""
        step = self.begin(lengths)
        block = None
        if step.drafts:
            logits = torch.full((len(drafts), GAMMA), logit)
            block = DraftBlock(torch.tensor(drafts), logits)
        lens = self.scheduler.verify_lens(step, block).tolist()
        tokens = emitted or [[0]] * len(step.slots)
        padded = [row + [END] * (GAMMA + 1 - len(row)) for row in tokens]
        verdict: Any = SimpleNamespace(
            out_tokens=torch.tensor(padded), accept_lens=torch.tensor([len(row) for row in tokens])
        )
        self.scheduler.end(step, block, verdict)
        return list(lens)

    def records(self) -> RecordSet:
        return from_wire(self.scheduler.rounds.reply(0))[0]


PLAIN_DRAFTS = [[1, 2, 3], [4, 5, 6]]


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
