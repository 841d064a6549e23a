"""ECE, AUROC, Brier score and reliability against values worked out by hand or by another way."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sgl_dspark.calibration.metrics import (
    SlotMetrics,
    auroc,
    bin_index,
    brier,
    ece,
    ece_floor,
    excess_ece,
    mean_ece,
    reliability,
    slot_metrics,
)
from sgl_dspark.calibration.records import RecordSet


def test_ece_by_hand() -> None:
    # Bin 2 holds .11 and .13 (mean .12) with labels 0 and 1; bin 18 holds .92 with label 1.
    assert ece([0.11, 0.13, 0.92], [0, 1, 1]) == pytest.approx((2 * 0.38 + 0.08) / 3)


def test_ece_of_one_bin_is_the_difference_of_means() -> None:
    rng = np.random.default_rng(1)
    p, y = rng.uniform(0.6, 0.649, 500), rng.random(500) < 0.3
    assert ece(p, y) == pytest.approx(abs(p.mean() - y.mean()))


def test_ece_is_zero_when_every_bin_agrees() -> None:
    assert ece([0.5, 0.5, 0.0, 1.0, 1.0], [0, 1, 0, 1, 1]) == 0


def test_bins_are_twenty_and_one_belongs_to_the_last() -> None:
    assert bin_index([0.0, 0.0499, 0.05, 0.95, 1.0]).tolist() == [0, 0, 1, 19, 19]


def test_the_floor_is_what_perfect_predictions_show_on_average() -> None:
    rng = np.random.default_rng(2)
    p = rng.random(600)
    shown = [ece(p, rng.random(600) < p) for _ in range(400)]
    assert ece_floor(p) == pytest.approx(np.mean(shown), rel=0.04)


def test_excess_removes_chance_and_keeps_real_error() -> None:
    rng = np.random.default_rng(3)
    p = rng.uniform(0.2, 0.7, 3000)
    off = ece(p, rng.random(3000) < p + 0.1)
    assert excess_ece(off, ece_floor(p)) == pytest.approx(0.1, abs=0.02)
    assert excess_ece(0.01, 0.02) == 0


def test_auroc_counts_pairs_and_halves_ties() -> None:
    rng = np.random.default_rng(4)
    p, y = rng.integers(0, 12, 300) / 11, rng.random(300) < 0.4
    positive, negative = p[y][:, None], p[~y][None, :]
    assert auroc(p, y) == pytest.approx(((positive > negative) + 0.5 * (positive == negative)).mean())


def test_auroc_ignores_monotone_maps() -> None:
    rng = np.random.default_rng(5)
    p, y = rng.random(200), rng.random(200) < 0.5
    assert auroc(p, y) == auroc(p**3, y)
    assert auroc(1 - p, y) == pytest.approx(1 - auroc(p, y))


def test_without_data_or_without_a_class_there_is_no_figure() -> None:
    assert math.isnan(auroc([0.1, 0.2], [1, 1]))
    assert math.isnan(ece([], []))
    assert math.isnan(ece_floor([]))
    assert math.isnan(brier([], []))


def test_brier_by_hand() -> None:
    assert brier([0.5, 1.0], [1, 0]) == pytest.approx(0.625)


def test_vectors_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        ece([0.1, 0.2], [1])


def test_reliability_by_hand() -> None:
    found = reliability([0.11, 0.13, 0.92], [0, 1, 1])
    assert found.count[[2, 18]].tolist() == [2, 1]
    assert found.count.sum() == 3
    assert found.mean_predicted[2] == pytest.approx(0.12)
    assert found.mean_observed[2] == 0.5
    assert math.isnan(found.mean_observed[0])


def test_slots_are_judged_over_observed_rounds_only() -> None:
    records = RecordSet.of(np.zeros((4, 2)), [2, 1, 1, 0], [2, 1, 0, 0], [False] * 4)
    first, second = slot_metrics(np.full((4, 2), [0.5, 0.25]), records)
    assert (first.count, second.count) == (3, 1)
    assert first.mean_observed == pytest.approx(2 / 3)
    # The two rounds whose second draft was never verified are no rejections.
    assert second.mean_observed == 1.0
    assert second.ece == pytest.approx(0.75)
    assert mean_ece([first, second]) == pytest.approx((1 / 6 + 0.75) / 2)


def test_metrics_survive_json_with_unknown_values() -> None:
    empty = slot_metrics(np.zeros((0, 1)), RecordSet.empty(1))[0]
    read = SlotMetrics.from_json(json.loads(json.dumps(empty.to_json(), allow_nan=False)))
    assert read.count == 0
    assert math.isnan(read.ece)
    assert math.isnan(mean_ece([read]))
