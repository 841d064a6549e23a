"""Calibration while serving: it follows shifts, stands still without evidence, and says when it cannot be trusted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.online import ADJUSTED, FullLengthProbes, OnlineCalibration, OnlineConfig
from sgl_dspark.calibration.records import GREEDY, SAMPLED, RecordSet
from sgl_dspark.errors import ConfigError
from tests.support.rounds import GAMMA, Traffic, exact_ece, trim

MATHS = Traffic(1.0, 0.0)


def feed(online: OnlineCalibration, records: RecordSet, batch: int = 4) -> None:
    for start in range(0, len(records), batch):
        part = records.select(np.arange(start, min(start + batch, len(records))))
        online.observe(part.logits, part.verified, part.accepted, part.sampled)


def in_force(online: OnlineCalibration, kind: int) -> CalibrationMap:
    inverse, biases = online.inverse_temperatures[kind], online.biases[kind]
    return CalibrationMap(inverse.astype(np.float64), biases.astype(np.float64))


def fitted(traffic: Traffic) -> OnlineCalibration:
    # A stored fit is never exactly the identity, which would count as none.
    truth = traffic.truth()
    return OnlineCalibration(GAMMA, CalibrationMap(truth.inverse_temperatures, truth.biases + 1e-6))


@pytest.mark.parametrize(
    "after",
    [Traffic(1.8, -1.2), Traffic(2.5, 0.0), Traffic(0.8, 0.7), Traffic(1.0, -1.5, mean=0.5)],
    ids=["chat", "overconfident", "easier", "harder"],
)
def test_a_shift_is_followed_within_500_rounds(after: Traffic) -> None:
    left = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        online = fitted(MATHS)
        feed(online, MATHS.draw(2500, rng))
        assert online.state(GREEDY) == "ok"
        assert online.live_mean_ece(GREEDY) < 0.03
        assert exact_ece(in_force(online, GREEDY), after, rng) > 0.08
        feed(online, after.draw(500, rng))
        assert online.snapshot()["greedy"]["restarts"] >= 1
        left.append((online.live_mean_ece(GREEDY), exact_ece(in_force(online, GREEDY), after, rng)))
    # What the server shows, and what is so: 500 outcomes alone leave the mean of a slot uncertain by 2 %, so the latter
    # is asked of the average.
    shown, so = np.mean(left, axis=0)
    assert shown < 0.03
    assert so < 0.03


def test_a_shift_is_followed_under_trimming_with_a_few_full_rounds() -> None:
    rng = np.random.default_rng(5)
    after = Traffic(1.8, -1.2)
    online = fitted(MATHS)
    feed(online, MATHS.draw(2000, rng))
    for _ in range(10):
        records = after.draw(100, rng)
        wanted = (in_force(online, GREEDY).survival(records.logits) > 0.4).sum(axis=1)
        feed(online, trim(records, np.where(rng.random(100) < 0.05, GAMMA, wanted)))
    assert exact_ece(in_force(online, GREEDY), after, rng) < 0.03
    assert online.state(GREEDY) == "ok"


@pytest.mark.parametrize("seed", range(4))
def test_steady_traffic_raises_no_alarm_and_stays_calibrated(seed: int) -> None:
    rng = np.random.default_rng(10 + seed)
    traffic = Traffic(1.4, -0.5)
    online = fitted(traffic)
    for _ in range(12):
        feed(online, traffic.draw(1000, rng), batch=16)
        assert online.usable
        assert exact_ece(in_force(online, GREEDY), traffic, rng) < 0.02
    assert online.snapshot()["greedy"]["drifts"] == 0


def test_the_drift_is_named_while_it_lasts() -> None:
    rng = np.random.default_rng(3)
    online = fitted(MATHS)
    feed(online, MATHS.draw(2000, rng))
    states = []
    for _ in range(40):
        feed(online, Traffic(1.0, -2.5).draw(16, rng), batch=16)
        states.append((online.state(GREEDY), online.usable))
    assert ("drift", False) in states
    assert states[-1] == ("ok", True)


def test_what_no_map_can_express_is_called_drift_and_ends_with_it() -> None:
    rng = np.random.default_rng(13)
    online = fitted(MATHS)
    # Outcomes that fall with confidence: the slope is bounded above zero, so no map fits.
    records = MATHS.draw(1500, rng)
    survival = MATHS.truth().confidence(records.logits)
    hits = np.cumprod(rng.random((1500, GAMMA)) > 0.9 * survival, axis=1).sum(axis=1)
    feed(online, RecordSet.of(records.logits, records.verified, hits, records.sampled))
    assert online.state(GREEDY) == "drift"
    assert not online.usable
    feed(online, MATHS.draw(1500, rng))
    assert online.state(GREEDY) == "ok"
    assert online.live_mean_ece(GREEDY) < 0.03


def test_without_a_stored_fit_it_learns_one() -> None:
    rng = np.random.default_rng(4)
    traffic = Traffic(2.0, -0.8)
    online = OnlineCalibration(GAMMA)
    assert online.state(GREEDY) == "learning"
    assert np.isnan(online.live_mean_ece(GREEDY))
    feed(online, traffic.draw(2000, rng))
    assert exact_ece(in_force(online, GREEDY), traffic, rng) < 0.02


def test_kinds_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(6)
    online = OnlineCalibration(GAMMA)
    inverse, biases, empirical = online.inverse_temperatures, online.biases, online.empirical
    before = empirical[GREEDY].copy()
    feed(online, Traffic(2.0, -0.8).draw(1000, rng, sampled=True))
    assert online.state(GREEDY) == "learning"
    assert inverse[GREEDY].tolist() == [1.0] * GAMMA
    assert empirical[GREEDY].tolist() == before.tolist()
    # The same arrays, so whoever holds them sees the change.
    assert inverse is online.inverse_temperatures
    assert (inverse[SAMPLED] != 1).all()
    assert (biases[SAMPLED] != 0).all()
    assert (empirical[SAMPLED] != before).all()


def test_mixed_steps_are_divided_by_kind() -> None:
    rng = np.random.default_rng(7)
    greedy, sampled = Traffic(1.0, 0.5).draw(600, rng), Traffic(1.0, -1.5).draw(600, rng, sampled=True)
    mixed, apart = OnlineCalibration(GAMMA), OnlineCalibration(GAMMA)
    order = np.arange(1200).reshape(2, 600).T.ravel()
    feed(mixed, RecordSet.concat([greedy, sampled]).select(order), batch=16)
    feed(apart, greedy, batch=8)
    feed(apart, sampled, batch=8)
    assert mixed.inverse_temperatures.tolist() == apart.inverse_temperatures.tolist()
    assert mixed.biases.tolist() == apart.biases.tolist()
    assert mixed.snapshot()["greedy"]["rounds"] == 600


def test_slots_that_are_never_verified_do_not_move() -> None:
    rng = np.random.default_rng(8)
    online = OnlineCalibration(GAMMA)
    feed(online, trim(Traffic(2.0, -0.8).draw(1500, rng), np.full(1500, 3)))
    assert (online.biases[GREEDY, :3] != 0).all()
    assert online.biases[GREEDY, 3:].tolist() == [0.0] * (GAMMA - 3)
    assert online.inverse_temperatures[GREEDY, 3:].tolist() == [1.0] * (GAMMA - 3)
    shown = online.snapshot()["greedy"]
    assert shown["ece"][3:] == [None] * (GAMMA - 3)


def test_the_running_mean_is_not_fooled_by_trimming() -> None:
    rng = np.random.default_rng(9)
    traffic = Traffic(1.0, 0.0, mean=1.0)
    records = traffic.draw(6000, rng)
    online = fitted(traffic)
    survival = traffic.truth().survival(records.logits)
    trimmed = trim(records, (survival > 0.5).sum(axis=1))
    feed(online, trimmed, batch=16)
    assert online.empirical[GREEDY] == pytest.approx(survival.mean(axis=0), abs=0.03)
    # The control: the mean over verified rounds alone favours confident ones.
    seen = trimmed.verified > 4
    assert (trimmed.accepted[seen] > 4).mean() > survival[:, 4].mean() + 0.2


def test_rounds_that_make_no_sense_are_counted_and_left_out() -> None:
    online = OnlineCalibration(2)
    logits = np.array([[0, 0], [np.nan, 0], [np.inf, 0], [0, 0], [0, 0], [0, 0]], np.float32)
    verified, accepted = [2, 2, 2, 1, 3, 2], [1, 1, 1, 2, 1, -1]
    online.observe(logits, verified, accepted, [False] * 6)
    online.flush()
    assert online.skipped == 5
    assert online.snapshot()["greedy"]["rounds"] == 1
    assert np.isfinite(online.inverse_temperatures).all()


@pytest.mark.parametrize("batch", [1, 63, 128, 512, 5000])
def test_any_batch_size_is_taken(batch: int) -> None:
    rng = np.random.default_rng(11)
    traffic = Traffic(1.5, -0.5)
    online = OnlineCalibration(GAMMA)
    feed(online, traffic.draw(20 * max(batch, 100), rng), batch=batch)
    online.flush()
    assert exact_ece(in_force(online, GREEDY), traffic, rng) < 0.025
    # A large step gives 128 of its rounds.
    assert online.snapshot()["greedy"]["rounds"] == 20 * max(100, min(batch, 128))


def test_no_rounds_change_nothing() -> None:
    online = OnlineCalibration(GAMMA)
    online.observe(np.zeros((0, GAMMA), np.float32), [], [], [])
    online.flush()
    assert online.inverse_temperatures.tolist() == [[1.0] * GAMMA] * 3


def test_the_snapshot_is_plain_json() -> None:
    online = OnlineCalibration(GAMMA)
    json.dumps(online.snapshot(), allow_nan=False)
    feed(online, MATHS.draw(200, np.random.default_rng(12)))
    shown = json.loads(json.dumps(online.snapshot(), allow_nan=False))
    assert shown["greedy"]["state"] == "ok"
    assert len(shown["greedy"]["bias"]) == GAMMA
    assert shown["sampled"]["mean_ece"] is None


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"block": 0}, {"half_life": 0}, {"settled_ece": 0.5}, {"min_evidence": 0}, {"drift_restart": 9999}):
        with pytest.raises(ConfigError, match="calibration"):
            OnlineConfig(**wrong)
    with pytest.raises(ConfigError, match="slots"):
        OnlineCalibration(4, CalibrationMap.identity(7))


def test_probes_stay_within_their_share_and_reach_everyone() -> None:
    probes = FullLengthProbes(GAMMA, max_share=0.01)
    chosen = []
    for step in range(20_000):
        row = probes.full_length_probe(step, 16, 16 + 30)
        if row >= 0:
            chosen.append(row)
            probes.charge(GAMMA)
        assert probes.extra_tokens <= 0.01 * probes.verify_tokens
    assert probes.share == pytest.approx(0.01, rel=0.01)
    assert probes.probes == len(chosen)
    counts = np.bincount(chosen, minlength=16)
    assert counts.min() > 0.5 * counts.mean()


def test_no_probe_where_everything_is_verified_or_nobody_runs() -> None:
    probes = FullLengthProbes(GAMMA, max_share=0.5)
    assert all(probes.full_length_probe(step, 4, 4 * (GAMMA + 1)) == -1 for step in range(100))
    assert probes.full_length_probe(0, 0, 0) == -1
    assert FullLengthProbes(GAMMA).share == 0
    assert FullLengthProbes(GAMMA, max_share=0.0).full_length_probe(1, 4, 400) == -1


def test_probes_that_were_not_needed_are_not_made_up_for_all_at_once() -> None:
    """Whole blocks for an hour, then a policy that trims: the bound holds for the steps from there on."""
    probes = FullLengthProbes(GAMMA, max_share=0.01)
    for step in range(10_000):
        assert probes.full_length_probe(step, 16, 16 * (GAMMA + 1)) == -1
    trimmed = extra = 0
    for step in range(200):
        trimmed += 16 + 5
        if probes.full_length_probe(step, 16, 16 + 5) >= 0:
            probes.charge(GAMMA)
            extra += GAMMA
    assert 0 < extra <= 0.01 * trimmed + 2 * GAMMA


def test_adjusted_requests_are_learned_apart_and_stop_nobody() -> None:
    """Their acceptance is another one; the others' calibration and readiness must not move with it."""
    rng = np.random.default_rng(3)
    online, untouched = OnlineCalibration(GAMMA), OnlineCalibration(GAMMA)
    plain, adjusted = Traffic(1.0, 0.5).draw(600, rng), Traffic(1.0, -2.5).draw(3000, rng)
    for one in (online, untouched):
        feed(one, plain)
    for start in range(0, 3000, 60):
        part = slice(start, start + 60)
        kinds = np.full(60, ADJUSTED)
        online.observe(adjusted.logits[part], adjusted.verified[part], adjusted.accepted[part], kinds)
    assert online.usable
    for name in ("empirical", "inverse_temperatures", "biases"):
        np.testing.assert_array_equal(getattr(online, name)[:ADJUSTED], getattr(untouched, name)[:ADJUSTED])
    assert online.empirical[ADJUSTED].mean() < online.empirical[0].mean() - 0.1
    assert online.snapshot()["adjusted"]["rounds"] == 3000
