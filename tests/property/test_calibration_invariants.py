"""Invariants of calibration and its metrics (paper, Sec. 3.2.1): what may move with a temperature and what may not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.metrics import auroc, bin_index, ece, reliability
from sgl_dspark.calibration.online import FullLengthProbes, OnlineCalibration
from sgl_dspark.calibration.records import RecordSet, from_wire, to_wire
from sgl_dspark.calibration.sts import fit_affine, fit_sts, temperature_grid

GAMMA = 4
logits_of = hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(GAMMA)), elements=st.floats(-30, 30, width=32))
temperatures_of = hnp.arrays(np.float64, GAMMA, elements=st.floats(0.2, 5))
biases_of = hnp.arrays(np.float64, GAMMA, elements=st.floats(-4, 4))


@st.composite
def record_sets(draw: st.DrawFn, most: int = 60) -> RecordSet:
    count = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    verified = rng.integers(0, GAMMA + 1, count)
    accepted = np.minimum(rng.integers(0, GAMMA + 1, count), verified)
    return RecordSet.of(rng.normal(0, 3, (count, GAMMA)), verified, accepted, rng.random(count) < 0.5)


@given(logits_of, temperatures_of, biases_of)
def test_survival_is_monotone_and_a_probability(
    logits: NDArray[np.float32], temperatures: NDArray[np.float64], biases: NDArray[np.float64]
) -> None:
    survival = CalibrationMap.of_temperatures(temperatures, biases).survival(logits)
    assert ((survival >= 0) & (survival <= 1)).all()
    assert (np.diff(survival, axis=1) <= 0).all()


@given(logits_of, temperatures_of, biases_of)
def test_order_within_a_slot_is_kept(
    logits: NDArray[np.float32], temperatures: NDArray[np.float64], biases: NDArray[np.float64]
) -> None:
    confidence = CalibrationMap.of_temperatures(temperatures, biases).confidence(logits)
    for slot in range(GAMMA):
        order = np.argsort(logits[:, slot], kind="stable")
        assert (np.diff(confidence[order, slot]) >= 0).all()


def test_order_of_survival_is_not_kept() -> None:
    # The paper's counterexample: a later temperature turns two rounds round.
    logits = np.array([[2.0, 0.0], [0.0, 2.2]])
    raw = CalibrationMap.identity(2).survival(logits)[:, 1]
    hot = CalibrationMap.of_temperatures([1.0, 2.0]).survival(logits)[:, 1]
    assert raw == pytest.approx([0.440, 0.450], abs=1e-3)
    assert hot == pytest.approx([0.440, 0.375], abs=1e-3)


@given(logits_of, temperatures_of, st.integers(0, GAMMA - 1), st.floats(0.2, 5))
def test_a_slots_temperature_leaves_earlier_survival_alone(
    logits: NDArray[np.float32], temperatures: NDArray[np.float64], slot: int, other: float
) -> None:
    changed = temperatures.copy()
    changed[slot] = other
    before, after = (CalibrationMap.of_temperatures(t).survival(logits) for t in (temperatures, changed))
    assert before[:, :slot].tolist() == after[:, :slot].tolist()


@settings(max_examples=25)
@given(record_sets(400))
def test_a_fit_is_in_the_grid_and_no_worse_than_one_in_each_slot(records: RecordSet) -> None:
    fitted = fit_sts(records, min_rounds=1)
    assert set(fitted) <= {*temperature_grid(), 1.0}
    for slot in range(GAMMA):
        seen = records.verified > slot
        at_one = np.where(np.arange(GAMMA) == slot, 1.0, fitted)
        errors = [
            ece(CalibrationMap.of_temperatures(t).survival(records.logits)[seen, slot], records.accepted[seen] > slot)
            for t in (fitted, at_one)
        ]
        assert not seen.any() or errors[0] <= errors[1] + 1e-12


@settings(max_examples=25)
@given(record_sets(400), st.integers(0, 2**32 - 1))
def test_what_lies_beyond_the_verified_slots_does_not_matter(records: RecordSet, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 5, records.logits.shape).astype(np.float32)
    other = RecordSet.of(
        np.where(records.observed, records.logits, noise), records.verified, records.accepted, records.sampled
    )
    assert fit_sts(records, min_rounds=1).tolist() == fit_sts(other, min_rounds=1).tolist()
    first, second = fit_affine(records, min_rounds=1), fit_affine(other, min_rounds=1)
    assert first.biases.tolist() == second.biases.tolist()
    online = [OnlineCalibration(GAMMA), OnlineCalibration(GAMMA)]
    for one, rounds in zip(online, (records, other), strict=True):
        one.observe(rounds.logits, rounds.verified, rounds.accepted, rounds.sampled)
        one.flush()
    assert online[0].biases.tolist() == online[1].biases.tolist()
    assert online[0].snapshot()["greedy"]["ece"] == online[1].snapshot()["greedy"]["ece"]


@given(record_sets())
def test_labels_never_rise_and_censoring_is_a_suffix(records: RecordSet) -> None:
    assert (np.diff(records.labels.astype(int), axis=1) <= 0).all()
    assert (np.diff(records.observed.astype(int), axis=1) <= 0).all()
    assert (records.labels <= records.observed).all()


@given(record_sets(), st.integers(0, 10**9))
def test_the_wire_loses_nothing(records: RecordSet, following: int) -> None:
    read, position = from_wire(to_wire(records, following))
    assert position == following
    assert read.logits.tobytes() == records.logits.tobytes()
    assert read.verified.tolist() == records.verified.tolist()
    assert read.accepted.tolist() == records.accepted.tolist()
    assert read.sampled.tolist() == records.sampled.tolist()


probabilities = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1))


@given(probabilities, st.integers(0, 2**32 - 1))
def test_metrics_lie_in_range_and_agree_with_the_bins(p: NDArray[np.float64], seed: int) -> None:
    y = np.random.default_rng(seed).random(len(p)) < p
    assert 0 <= ece(p, y) <= 1
    found = reliability(p, y)
    gaps = np.nan_to_num(np.abs(found.mean_predicted - found.mean_observed))
    assert ece(p, y) == pytest.approx((found.count * gaps).sum() / len(p), abs=1e-12)
    assert found.count.sum() == len(p)
    if 0 < y.sum() < len(p):
        # Dyadic numbers, so that the map keeps ties exactly.
        rough = np.round(p * 64) / 64
        assert auroc(rough, y) == auroc(rough / 2 + 0.25, y)
        assert auroc(rough, y) == pytest.approx(1 - auroc(rough, ~y))


@given(probabilities)
def test_ece_is_zero_where_labels_are_the_predictions(p: NDArray[np.float64]) -> None:
    assert ece(p, p) == 0
    index = bin_index(p)
    assert ((index >= 0) & (index < 20)).all()


@settings(max_examples=40)
@given(st.lists(record_sets(), min_size=1, max_size=12))
def test_any_traffic_leaves_a_usable_map(parts: list[RecordSet]) -> None:
    online = OnlineCalibration(GAMMA)
    for part in parts:
        online.observe(part.logits, part.verified, part.accepted, part.sampled)
    online.flush()
    assert (online.inverse_temperatures > 0).all()
    assert np.isfinite(online.inverse_temperatures).all()
    assert np.isfinite(online.biases).all()
    assert ((online.empirical >= 0) & (online.empirical <= 1)).all()
    assert (np.diff(online.empirical, axis=1) <= 1e-6).all()


@given(
    st.floats(0, 0.2),
    st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1)), min_size=1, max_size=200),
    st.integers(1, 8),
)
def test_probes_never_exceed_their_share(share: float, steps: list[tuple[int, float]], gamma: int) -> None:
    probes = FullLengthProbes(gamma, share)
    for step, (requests, filled) in enumerate(steps):
        row = probes.full_length_probe(step, requests, requests + int(filled * requests * gamma))
        assert -1 <= row < max(requests, 1)
        if row >= 0:
            probes.charge(gamma)
        assert probes.extra_tokens <= share * probes.verify_tokens
