"""The planner runs in the simulator as it serves; lag, variants and studies behave as their names say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.policy import PlannerConfig
from sgl_dspark.simulator.acceptance import Drafts, Synthetic, SyntheticConfig
from sgl_dspark.simulator.arms import NO_SPEC, Arm, PlannerController, standard_arms
from sgl_dspark.simulator.arrivals import Lengths, Workload, closed_loop, draining
from sgl_dspark.simulator.engine import Batch, Engine, EngineConfig
from sgl_dspark.simulator.log import Log
from sgl_dspark.simulator.machines import MACHINES, FixedContext, Machine, cpu_like, h200_like
from sgl_dspark.simulator.scenario import Scenario, compare, synthetic
from sgl_dspark.simulator.variants import HullStop, LiteralLag, convex_hull
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel

GAMMA = 7
LENGTHS = Lengths(100, 60)


def serve(arm: Arm, load: Workload, acceptance: SyntheticConfig, machine: Machine, seed: int = 0) -> Log:
    source = Synthetic(acceptance, GAMMA, load.output_tok, seed)
    controller = arm.controller(GAMMA, 16, machine.steps)
    return Engine(EngineConfig(16), load, source, machine, controller).run()


def clients(count: int, requests: int = 48, seed: int = 0) -> Workload:
    return closed_loop(requests, count, LENGTHS, np.random.default_rng(seed))


@pytest.mark.parametrize("machine", ["h200", "cpu"])
@pytest.mark.parametrize("smoothing", [0.0, 8.0])
def test_lag_does_not_matter_once_confidences_stand_still(machine: str, smoothing: float) -> None:
    # Confidence is exactly the planner's prior, so a request without history is no exception either.
    still = SyntheticConfig(constant=0.7)
    logs = [
        serve(Arm("lag", PlannerConfig(lag=lag, smoothing_rows=smoothing)), clients(12), still, MACHINES[machine]())
        for lag in (0, 2, 4)
    ]
    assert logs[0].column("verified").max() > 0
    for other in logs[1:]:
        assert other.column("verified").tolist() == logs[0].column("verified").tolist()
        assert other.end_s == logs[0].end_s


def test_lag_matters_when_confidences_move() -> None:
    logs = [
        serve(Arm("", PlannerConfig(lag=lag, smoothing_rows=0.0)), clients(4), SyntheticConfig(), cpu_like())
        for lag in (0, 2)
    ]
    assert logs[0].column("verified").tolist() != logs[1].column("verified").tolist()
    rates = [log.column("emitted").sum() / log.column("seconds").sum() for log in logs]
    assert rates[0] > rates[1]


def test_a_plan_reads_nothing_younger_than_its_lag() -> None:
    config = PlannerConfig(lag=2, smoothing_rows=0.0)

    def budgets(change_at: int) -> list[int]:
        controller = PlannerController(config, GAMMA, 4, cpu_like().steps, np.ones(GAMMA, np.float32))
        batch = Batch(np.arange(4), np.ones(4, dtype=np.int64), 400)
        seen = []
        for step in range(8):
            logits = np.full((4, GAMMA), 3.0 if step < change_at else 0.0, dtype=np.float32)
            seen.append(int(controller.plan(batch, Drafts(logits, logits > 0)).lens.sum()))
        return seen

    never, at_5 = budgets(99), budgets(5)
    assert at_5[:7] == never[:7]
    assert at_5[7] < never[7]


@pytest.mark.parametrize("name", [arm.name for arm in standard_arms(GAMMA, (0, 2))])
def test_every_policy_keeps_every_token(name: str) -> None:
    (arm,) = (arm for arm in standard_arms(GAMMA, (0, 2)) if arm.name == name)
    load = draining(30, LENGTHS, np.random.default_rng(1))
    log = serve(arm, load, SyntheticConfig(temperature=1.5), h200_like())
    assert (log.emitted_tok == load.output_tok).all()
    each = log.column("verified") / log.column("requests")
    if name == NO_SPEC:
        assert (each == 0).all()
    elif name.startswith("static"):
        assert (each == int(name.split()[1])).all()
    else:
        assert each.min() < GAMMA
        assert each.max() <= GAMMA


def test_static_lengths_above_gamma_are_not_offered() -> None:
    assert [arm.name for arm in standard_arms(4)][:4] == [NO_SPEC, "static 1", "static 3", "static 4"]


def test_arms_share_their_text_so_that_the_same_policy_gives_the_same_figures() -> None:
    scenario = Scenario(
        "", lambda rng: closed_loop(20, 4, LENGTHS, rng), synthetic(SyntheticConfig(), GAMMA), cpu_like()
    )
    arms = [Arm("one", PlannerConfig()), Arm("other", PlannerConfig())]
    figures = compare(scenario, arms, (3, 4))
    assert figures["one"] == figures["other"]
    assert figures["one"][0] != figures["one"][1]


def test_a_predicted_step_time_is_the_machines_and_a_wrong_belief_is_not() -> None:
    scenario = Scenario(
        "", lambda rng: closed_loop(40, 8, LENGTHS, rng), synthetic(SyntheticConfig(), GAMMA), h200_like()
    )
    belief = FixedContext(scenario.machine.steps, 100_000)
    figures = compare(scenario, [Arm("right", PlannerConfig()), Arm("wrong", PlannerConfig(), belief)], (0,))
    assert figures["right"][0].time_error < 1e-9
    assert abs(figures["right"][0].expected_error) < 0.05
    assert figures["wrong"][0].time_error > 0.5


def test_calibration_undoes_what_miscalibrated_logits_do() -> None:
    load = clients(8)
    arm = Arm("", PlannerConfig(), confidence_scale=0.5)
    undone = serve(arm, load, SyntheticConfig(temperature=2.0), cpu_like())
    calibrated = serve(Arm("", PlannerConfig()), load, SyntheticConfig(), cpu_like())
    assert undone.column("verified").tolist() == calibrated.column("verified").tolist()
    overconfident = serve(Arm("", PlannerConfig()), load, SyntheticConfig(temperature=2.0), cpu_like())
    assert overconfident.column("verified").tolist() != calibrated.column("verified").tolist()


def test_a_literal_lag_applies_the_number_of_the_old_batch() -> None:
    policy = LiteralLag(1, GAMMA, Flat())
    logits = np.full((5, GAMMA), 4.0, dtype=np.float32)
    first, second, third = (
        policy.plan(Batch(np.arange(rows), np.ones(rows, dtype=np.int64), 0), Drafts(logits[:rows], logits[:rows] > 0))
        for rows in (2, 5, 5)
    )
    assert first.lens.tolist() == [0, 0]
    # Steps cost the same at any size, so every draft is worth it: 14 of the two requests, then 35 of the five.
    assert second.lens.sum() == 2 * GAMMA
    assert third.lens.sum() == 5 * GAMMA


class Flat(StepTimeModel):
    """Every step takes a second."""

    def __init__(self) -> None:
        super().__init__(Curve([1, 1000], [1.0, 1.0]), Curve([1, 1000], [0.0, 0.0]))


def test_the_hull_lies_below_the_staircase_touches_it_and_is_convex() -> None:
    model = h200_like().steps
    hull = convex_hull(model)
    sizes = np.arange(1, 4096)
    stairs = np.array([model.verify.at(int(size)) for size in sizes])  # type: ignore[attr-defined]
    below = np.array([hull.verify.at(int(size)) for size in sizes])
    assert (below <= stairs + 1e-12).all()
    assert np.isclose(below, stairs).any()
    assert (np.diff(below, 2) >= -1e-12).all()
    with pytest.raises(ConfigError, match="^belief: "):
        convex_hull(FixedContext(model, 10))


@pytest.mark.parametrize("seed", range(20))
def test_hull_stop_decides_a_draft_by_its_rank_and_what_ranks_before_it(seed: int) -> None:
    """Losslessness asks for it: lowering what ranks later must not change what was admitted before."""
    rng = np.random.default_rng(seed)
    policy = HullStop(GAMMA, h200_like().steps)
    batch = Batch(np.arange(24), np.ones(24, dtype=np.int64), 24 * 500)
    logits = rng.normal(1.5, 1.5, (24, GAMMA)).astype(np.float32)
    lens = policy.plan(batch, Drafts(logits, logits > 0)).lens
    later = np.arange(GAMMA) >= lens[:, None]
    lower = np.where(later, np.float32(-9.0), logits)
    kept: Sequence[int] = policy.plan(batch, Drafts(lower, logits > 0)).lens.tolist()
    assert all(after >= before for after, before in zip(kept, lens, strict=True))
