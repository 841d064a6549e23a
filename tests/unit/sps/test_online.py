from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel
from sgl_dspark.sps.online import OnlineStepTime
from tests.support.serving_steps import GAMMA, Machine, decision_ratio, probed, serve, true_ratio

LOADS = (1, 2, 4, 8, 16, 24, 32, 48, 64)


def started(seed: int = 0, machine: Machine | None = None) -> tuple[Machine, OnlineStepTime, np.random.Generator]:
    rng = np.random.default_rng(seed)
    machine = machine or Machine()
    return machine, OnlineStepTime(probed(machine, rng)), rng


def test_before_the_first_step_it_is_the_start_up_model() -> None:
    _, online, _ = started()
    assert online.step_times(4, GAMMA, 900, 7, 2) == pytest.approx(online.model.step_times(4, GAMMA, 900, 7, 2))
    assert online.plain_time(4, 900, 7) == pytest.approx(online.model.plain_time(4, 900, 7))
    assert online.draft_row_s(4) == pytest.approx(online.model.draft_row_s(4))
    assert math.isnan(online.error_median)
    assert online.state()["error_median"] is None


@pytest.mark.parametrize("seed", range(3))
def test_the_host_is_learnt_within_tens_of_steps_at_every_load(seed: int) -> None:
    machine, online, rng = started(seed)
    before = abs(online.plain_time(1, 500) / machine.step(1, 0, 0, 500) - 1.0)
    assert before > 0.3
    errors = serve(machine, online, rng, 400)
    assert np.median(errors.step[50:100]) < 0.05
    assert np.median(errors.step[100:]) < 0.03
    assert np.median(errors.ratio[100:]) < 0.03
    assert online.error_median < 0.1


def test_one_load_teaches_the_others() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 100, requests=(8,))
    for requests in (4, 16):
        context = 500 * requests
        naive = abs(online.model.plain_time(requests, context) / machine.step(requests, 0, 0, context) - 1.0)
        assert abs(online.plain_time(requests, context) / machine.step(requests, 0, 0, context) - 1.0) < naive / 2


def test_outliers_do_not_move_it() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 200, outliers=0.0)
    before = [online.predict(load, 3 * load, load, 500 * load) for load in LOADS]
    rejected = online.rejected
    for load in (8, 8, 32):
        online.observe(load, 3 * load, load, 500 * load, 0, 10 * machine.step(load, 3 * load, load, 500 * load))
    after = [online.predict(load, 3 * load, load, 500 * load) for load in LOADS]
    assert after == pytest.approx(before, rel=0.01)
    assert (online.rejected - rejected, online.shifts) == (3, 0)


def test_an_outlier_among_the_first_steps_is_no_reference() -> None:
    machine, online, _ = started()
    usual = machine.step(8, 24, 8, 4000)
    for seconds in (10 * usual, usual, 1.01 * usual, 0.99 * usual, usual):
        online.observe(8, 24, 8, 4000, 0, seconds)
    assert online.predict(8, 24, 8, 4000) == pytest.approx(usual, rel=0.05)
    assert online.rejected == 1


@pytest.mark.parametrize("slow", [0.6, 1.5, 3.0])
@pytest.mark.parametrize("drafted_share", [0.0, 0.8, 1.0])
def test_a_level_shift_is_followed_in_both_modes(slow: float, drafted_share: float) -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 300)
    machine = machine.changed(slow=slow)
    serve(machine, online, rng, 50, drafted_share=drafted_share)
    errors = serve(machine, online, rng, 50, drafted_share=drafted_share)
    assert online.shifts >= 1
    assert np.median(errors.step) < 0.05
    # The mode that was not seen moved along.
    assert np.median(errors.ratio) < 0.06


def test_a_draft_that_slows_down_alone_does_not_take_plain_steps_with_it() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 300)
    slower = machine.changed(drafting=4.0)
    serve(slower, online, rng, 150)
    plain = [online.plain_time(load, 500 * load) / machine.step(load, 0, 0, 500 * load) for load in LOADS]
    assert plain == pytest.approx(np.ones(len(LOADS)), abs=0.1)
    ratios = [decision_ratio(online, load, 500 * load) / true_ratio(slower, load, 500 * load) for load in LOADS]
    assert float(np.median(np.abs(np.array(ratios) - 1.0))) < 0.08


def test_a_mode_seen_once_in_a_while_is_put_right_by_few_steps() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 200)
    for _ in range(6):
        serve(machine, online, rng, 40, drafted_share=1.0, requests=(8,))
        # Plain steps alone have become twice as fast.
        online.observe(8, 0, 0, 4000, 0, 0.5 * machine.step(8, 0, 0, 4000))
    assert online.plain_time(8, 4000) == pytest.approx(0.5 * machine.step(8, 0, 0, 4000), rel=0.12)
    assert online.predict(8, 24, 8, 4000) == pytest.approx(machine.step(8, 24, 8, 4000), rel=0.1)


def test_a_shift_at_a_load_that_is_little_known_is_not_taken_for_its_own() -> None:
    ratios = []
    for seed in range(4):
        machine, online, rng = started(seed, Machine(misfit=0.1))
        serve(machine, online, rng, 400, drafted_share=0.03)
        serve(machine.changed(slow=1.6), online, rng, 40, drafted_share=0.03)
        ratios.append(serve(machine.changed(slow=1.6), online, rng, 100, drafted_share=0.03).ratio)
    # Attributing the shift to that load would leave the others 30 % off.
    assert float(np.quantile(ratios, 0.9)) < 0.15


def test_a_shift_that_hides_in_high_noise_is_followed() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 300, spread=0.15)
    serve(machine.changed(slow=1.5), online, rng, 75, spread=0.15)
    errors = serve(machine.changed(slow=1.5), online, rng, 100, spread=0.15)
    assert np.median(errors.step) < 0.08


def test_a_wrong_shape_of_the_start_up_curve_is_corrected_where_it_is_wrong() -> None:
    machine, online, rng = started(machine=Machine(misfit=0.15))
    errors = serve(machine, online, rng, 600)
    assert np.median(errors.step[300:]) < 0.03


def test_prefills_are_learnt_apart_from_decode_steps() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 200)
    decode = online.predict(8, 24, 8, 4000)
    for prefill in [100, 400, 200, 800] * 5:
        online.observe(8, 24, 8, 4000, prefill, machine.step(8, 24, 8, 4000, prefill))
    assert online.predict(8, 24, 8, 4000) == pytest.approx(decode, rel=0.05)
    assert online.predict(8, 24, 8, 4000, 600) == pytest.approx(machine.step(8, 24, 8, 4000, 600), rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_ignored(seconds: float) -> None:
    _, online, _ = started()
    online.observe(4, 2, 4, 100, 0, seconds)
    online.observe(0, 0, 0, 0, 0, 1.0)
    assert online.observations == 0


def test_what_was_learnt_can_be_taken_along_as_a_model() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 300)
    model = online.snapshot()
    for load in LOADS:
        assert model.plain_time(load, 500 * load) == pytest.approx(online.plain_time(load, 500 * load), rel=1e-6)
        times = online.step_times(load, GAMMA, 500 * load)
        assert model.step_times(load, GAMMA, 500 * load) == pytest.approx(times, rel=0.02)


def test_a_host_that_seems_to_give_time_back_leaves_a_valid_model() -> None:
    online = OnlineStepTime(StepTimeModel(verify=Curve([1, 64], [10e-3, 20e-3]), draft=Curve([1], [5e-3]), host_s=5e-3))
    for step in range(200):
        requests = 1 + step % 16
        online.observe(requests, requests, requests, 0, 0, 9e-3 + 4e-4 * requests)
    model = online.snapshot()
    assert model.host_s >= 0
    assert model.step_times(4, 3, 0)[4] == pytest.approx(online.step_times(4, 3, 0)[4], rel=0.1)


def test_tiers_survive_the_correction() -> None:
    machine, rng = Machine(), np.random.default_rng(0)
    online = OnlineStepTime(probed(machine, rng, tiers=[4, 16, 64, 256, 512]))
    serve(machine, online, rng, 100)
    times = online.step_times(4, GAMMA, 0)
    assert np.array_equal(times[1:13], np.full(12, times[1]))
    assert times[13] > times[12]
    assert online.tiers is not None


def test_the_state_is_json() -> None:
    machine, online, rng = started()
    serve(machine, online, rng, 100)
    state = json.loads(json.dumps(online.state()))
    assert state["observations"] == 100
    assert state["host_s"] > 0
    assert state["error_median"] == online.error_median


@pytest.mark.parametrize("factor", [0.08, 0.3, 3.0, 30.0])
def test_a_profile_of_a_far_slower_or_faster_machine_is_followed(factor: float) -> None:
    """A profile that was measured while the machine was busy is wrong by any factor, and is kept for the next start."""
    machine, online, random = started()
    for number in range(1500):
        requests = (1, 2, 4, 8)[number // 20 % 4]
        drafted = requests if random.random() < 0.8 else 0
        budget = int(random.integers(0, 4 * requests + 1)) if drafted else 0
        seconds = machine.step(requests, budget, drafted, requests * 300) * factor
        online.observe(requests, budget, drafted, requests * 300, 0, seconds * float(np.exp(random.normal(0, 0.05))))
    assert online.error_median < 0.1
