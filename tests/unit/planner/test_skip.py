from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from sgl_dspark.planner.profile import SurvivalProfile
from sgl_dspark.planner.skip import RowGate, StepGate


def drafted_steps(gate: StepGate, gain: float, steps: int) -> list[int]:
    """Count steps from 0 and list those at which a gate that keeps predicting ``gain`` drafts."""
    return [i for i in range(steps) if gate.step(gain)[0]]


def test_drafting_ends_below_the_lower_gain_and_begins_above_the_higher() -> None:
    gate = StepGate(0.02, 0.0, 100, 100)
    answers = [gate.step(gain)[0] for gain in (0.5, 0.01, 0.0, -0.01, 0.01, 0.02, 0.021, 0.01)]
    assert answers == [True, True, True, False, False, False, True, True]


def test_a_gain_between_the_two_bounds_never_flaps() -> None:
    rng = np.random.default_rng(0)
    gate = StepGate(0.02, 0.0, 10**6, 10**6)
    gate.step(-1.0)
    assert not any(gate.step(float(g))[0] for g in rng.uniform(0.001, 0.02, 100))
    gate.step(1.0)
    assert all(gate.step(float(g))[0] for g in rng.uniform(0.0, 0.02, 100))


def test_probes_become_rare_up_to_the_bound() -> None:
    gate = StepGate(0.02, 0.0, 2, 8)
    probes = drafted_steps(gate, -0.5, 60)
    assert probes == [2, 7, 16, 25, 34, 43, 52]
    assert np.diff(probes).tolist() == [5, 9, 9, 9, 9, 9]


def test_a_probe_is_called_one_and_drafting_is_not() -> None:
    gate = StepGate(0.02, 0.0, 1, 1)
    assert [gate.step(-1.0) for _ in range(3)] == [(False, False), (True, True), (False, False)]
    assert gate.step(1.0) == (True, False)


def test_a_confirmed_probe_is_repeated_at_once_and_only_while_not_drafting() -> None:
    gate = StepGate(0.02, 0.0, 16, 256)
    gate.confirm()
    assert gate.step(-1.0) == (False, False)
    gate.confirm()
    assert gate.step(-1.0) == (True, True)
    assert gate.step(-1.0) == (False, False)


def test_ending_again_starts_from_the_shortest_wait() -> None:
    gate = StepGate(0.02, 0.0, 2, 64)
    drafted_steps(gate, -0.5, 100)
    assert gate.step(1.0) == (True, False)
    assert drafted_steps(gate, -0.5, 4) == [2]


def slots(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_a_row_is_left_out_after_its_patience_probed_and_comes_back_at_once() -> None:
    gate = RowGate(4, patience=2, interval=3, interval_max=4)
    batch, generations = slots(0, 3), slots(0, 0)
    history = []
    for _ in range(16):
        choice = gate.step(batch, generations, np.array([False, True]))
        history.append(True if choice is None else bool(choice.drafted[1]))
        assert choice is None or choice.drafted[0]
    # The first step learns who is in the slot, two more are its patience; then waits of 3, 4 and 4.
    assert [i for i, drafted in enumerate(history) if drafted] == [0, 1, 2, 6, 11]
    assert gate.step(batch, generations, np.array([False, False])) is None
    assert gate.step(batch, generations, np.array([False, True])) is None


def test_probes_of_rows_are_counted() -> None:
    gate = RowGate(4, patience=1, interval=1, interval_max=1)
    probes = []
    for _ in range(6):
        choice = gate.step(slots(0, 1), slots(0, 0), np.array([True, True]))
        probes.append(0 if choice is None else choice.probes)
    assert probes == [0, 0, 0, 2, 0, 2]


def test_a_new_occupant_starts_with_full_patience() -> None:
    gate = RowGate(4, patience=1, interval=50, interval_max=50)
    for _ in range(5):
        choice = gate.step(slots(2), slots(0), np.array([True]))
    assert choice is not None
    assert_array_equal(choice.drafted, [False])
    assert gate.step(slots(2), slots(1), np.array([True])) is None


def test_many_requests_are_hardly_smoothed_and_one_is() -> None:
    high, low = np.float32(0.9), np.float32(0.1)
    for requests, expected in ((1, 0.9 - 0.8 / 9), (8, 0.5), (1000, 0.1)):
        profile = SurvivalProfile(8.0)
        profile.update(np.full(requests, high), requests, 1)
        after = profile.update(np.full(requests, low), requests, 2)
        np.testing.assert_allclose(after, expected, atol=1e-5)


def test_evidence_ages_with_steps_that_bring_none_but_one_probe_is_not_everything() -> None:
    profile = SurvivalProfile(8.0)
    profile.update(np.full(7, 0.9, np.float32), 1, 1)
    after = profile.update(np.full(7, 0.1, np.float32), 1, 200)
    np.testing.assert_allclose(after, 0.5, atol=1e-5)


def test_strangers_displace_as_much_of_the_average_as_their_share() -> None:
    profile = SurvivalProfile(8.0)
    profile.update(np.full(7, 0.9, np.float32), 1, 1)
    np.testing.assert_allclose(profile.update(np.full(7, 0.5, np.float32), 1, 2, strangers=0.75), 0.6, atol=1e-5)
    np.testing.assert_allclose(profile.update(np.full(7, 0.1, np.float32), 1, 3, strangers=1.0), 0.1, atol=1e-5)


def test_a_profile_is_resized_as_quantiles() -> None:
    profile = SurvivalProfile(0.0)
    profile.update(np.array([0.9, 0.5, 0.1], np.float32), 1, 1)
    np.testing.assert_allclose(profile.resized(6), [0.9, 0.9, 0.5, 0.5, 0.1, 0.1])
    profile.update(np.array([0.9, 0.9, 0.5, 0.5, 0.1, 0.1], np.float32), 2, 2)
    np.testing.assert_allclose(profile.resized(3), [0.9, 0.5, 0.1])
