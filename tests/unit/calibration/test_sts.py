"""Fits recover a known law, keep to the paper's order of things and stand still without evidence."""

from __future__ import annotations

import numpy as np
import pytest

from sgl_dspark.calibration.choose import fit_kind, mean_excess_ece
from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.metrics import ece, mean_ece, observed_slot, slot_metrics
from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.calibration.sts import fit_affine, fit_sts, temperature_grid
from tests.support.rounds import GAMMA, Traffic, exact_ece, trim


def test_the_grid_is_even_in_the_logarithm_and_holds_one_exactly() -> None:
    grid = temperature_grid()
    assert grid[0] == 1.0
    assert np.all(np.diff(np.abs(np.log(grid))) > -1e-12)
    steps = np.diff(np.log(np.sort(grid)))
    assert steps == pytest.approx(np.full(80, steps[0]))
    assert [grid.min(), grid.max()] == pytest.approx([0.2, 5.0])
    with pytest.raises(ValueError, match="odd"):
        temperature_grid(80)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_sts_recovers_temperatures(temperature: float) -> None:
    traffic, rng = Traffic(temperature), np.random.default_rng(0)
    fitted = fit_sts(traffic.draw(30_000, rng))
    assert fitted[:3] == pytest.approx(np.full(3, temperature), rel=0.13)
    assert exact_ece(CalibrationMap.of_temperatures(fitted), traffic, rng) < 0.01


def test_sts_brings_held_out_ece_below_the_goal() -> None:
    traffic, rng = Traffic(1.8), np.random.default_rng(1)
    fit, held_out = traffic.draw(20_000, rng), traffic.draw(20_000, rng)
    raw = mean_ece(slot_metrics(CalibrationMap.identity(GAMMA).survival(held_out.logits), held_out))
    fitted = CalibrationMap.of_temperatures(fit_sts(fit))
    after = mean_ece(slot_metrics(fitted.survival(held_out.logits), held_out))
    assert raw > 0.1
    assert after < 0.015


def test_a_slot_is_no_worse_than_with_its_temperature_at_one() -> None:
    records = Traffic(0.7, 0.4).draw(3000, np.random.default_rng(2))
    fitted = fit_sts(records)
    for slot in range(GAMMA):
        at_one = np.where(np.arange(GAMMA) == slot, 1.0, fitted)
        errors = [
            ece(*observed_slot(CalibrationMap.of_temperatures(t).survival(records.logits), records, slot))
            for t in (fitted, at_one)
        ]
        assert errors[0] <= errors[1] + 1e-12


def test_later_slots_do_not_move_earlier_ones() -> None:
    records = Traffic(1.5).draw(4000, np.random.default_rng(3))
    short = RecordSet.of(
        records.logits[:, :3], np.minimum(records.verified, 3), np.minimum(records.accepted, 3), records.sampled
    )
    assert fit_sts(records)[:3].tolist() == fit_sts(short).tolist()


def test_slots_without_evidence_keep_one() -> None:
    records = Traffic(2.0).draw(5000, np.random.default_rng(4))
    verified = np.where(np.arange(5000) < 150, GAMMA, 2)
    fitted = fit_sts(trim(records, verified))
    assert (fitted[:2] > 1.4).all()
    assert fitted[2:].tolist() == [1.0] * (GAMMA - 2)
    affine = fit_affine(trim(records, verified))
    assert affine.temperatures[2:].tolist() == [1.0] * (GAMMA - 2)
    assert affine.biases[2:].tolist() == [0.0] * (GAMMA - 2)


def test_equal_minima_go_to_the_temperature_nearest_to_one() -> None:
    # Logits of zero say 1/2 at every temperature.
    records = RecordSet.of(np.zeros((1000, 2)), np.full(1000, 2), np.arange(1000) % 3, np.zeros(1000))
    assert fit_sts(records).tolist() == [1.0, 1.0]


def test_trimming_by_confidence_does_not_bias_the_fit() -> None:
    traffic, rng = Traffic(1.6), np.random.default_rng(5)
    records = traffic.draw(40_000, rng)
    survival = CalibrationMap.identity(GAMMA).survival(records.logits)
    trimmed = trim(records, (survival > 0.35).sum(axis=1))
    assert exact_ece(fit_affine(trimmed), traffic, rng) < 0.015
    # The control: the same fit with unverified slots taken for rejections is far off.
    wrong = RecordSet.of(records.logits, np.full(40_000, GAMMA), trimmed.accepted, records.sampled)
    assert exact_ece(fit_affine(wrong), traffic, rng) > 0.05


def test_an_intercept_follows_what_no_temperature_can() -> None:
    traffic, rng = Traffic(1.0, -1.5, mean=0.0), np.random.default_rng(6)
    fit, held_out = traffic.draw(8000, rng), traffic.draw(8000, rng)
    assert exact_ece(CalibrationMap.of_temperatures(fit_sts(fit)), traffic, rng) > 0.02
    affine = fit_affine(fit)
    assert affine.biases[0] == pytest.approx(-1.5, abs=0.1)
    assert affine.temperatures[0] == pytest.approx(1.0, abs=0.1)
    chosen = fit_kind(fit, held_out)
    assert chosen.method == "affine"
    assert mean_excess_ece(chosen.after) < 0.01 < mean_excess_ece(chosen.before)


def test_the_chosen_method_is_the_one_asked_for() -> None:
    records = Traffic(1.5).draw(3000, np.random.default_rng(7))
    fit, held_out = records.split(0.3)
    assert fit_kind(fit, held_out, "sts").map.biases.tolist() == [0.0] * GAMMA
    assert fit_kind(fit, held_out, "affine").method == "affine"


def test_too_few_rounds_leave_the_confidence_alone() -> None:
    records = Traffic(3.0).draw(150, np.random.default_rng(8))
    kind = fit_kind(records, RecordSet.empty(GAMMA))
    assert kind.method == "identity"
    assert kind.map.is_identity
    assert [m.count for m in kind.after] == [0] * GAMMA
