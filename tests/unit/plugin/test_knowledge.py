from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from dspark_sglang.config import OFF, SchedulingConfig
from dspark_sglang.knowledge import PORTION, TIMED_EVERY, TIMED_FIRST, Knowledge
from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.store import FILE_NAME, Calibration, KindCalibration, draft_sha256
from sgl_dspark.errors import CalibrationError
from sgl_dspark.sps.fit import Probe
from sgl_dspark.sps.store import Fingerprint

GAMMA = 3
HERE = Fingerprint({"target": "small", "threads": 1})


def measure() -> list[Probe]:
    return [Probe("verify", 1, tokens, 64, 0.01 + 0.001 * tokens) for tokens in (2, 4, 8)]


def never() -> list[Probe]:
    raise AssertionError("a profile that fits must not be measured again")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def knowledge(draft: Path, **config: object) -> Knowledge:
    return Knowledge(SchedulingConfig(**config), GAMMA, str(draft), {})  # type: ignore[arg-type]


def store_calibration(draft: Path, path: Path, gamma: int = GAMMA) -> None:
    kind = KindCalibration(CalibrationMap.of_temperatures([2.0] * gamma), "sts")
    Calibration(gamma, draft_sha256(draft), kind, kind, {}).save(path)


def test_step_times_are_measured_once_and_then_read(draft: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "times.json"
    first = knowledge(draft)
    first.start(measure, HERE, path)
    second = knowledge(draft)
    second.start(never, HERE, path)
    assert (first.step_time_source, second.step_time_source) == ("measured at start-up", "profile times.json")
    costs = [one.costs(2, GAMMA, 100) for one in (first, second)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert np.array_equal(costs[0].step_times, costs[1].step_times)
    assert len(costs[0].step_times) == 2 * GAMMA + 1


@pytest.mark.parametrize("damage", ["other machine", "truncated", "not a profile"])
def test_a_profile_that_does_not_fit_is_refused_with_a_reason_and_measured_again(
    draft: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "times.json"
    knowledge(draft).start(measure, Fingerprint({"target": "small", "threads": 8}), path)
    if damage == "truncated":
        path.write_text(path.read_text()[:100])
    if damage == "not a profile":
        path.write_text("[]")
    with caplog.at_level(logging.WARNING):
        again = knowledge(draft)
        again.start(measure, HERE, path)
    assert again.step_time_source == "measured at start-up"
    assert {"other machine": "threads was 8", "truncated": "damaged", "not a profile": "not a step-time profile"}[
        damage
    ] in caplog.text
    knowledge(draft).start(never, HERE, path)


def test_a_folder_that_cannot_be_written_does_not_stop_the_start(
    draft: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    one = knowledge(draft, profile=str(tmp_path / "file" / "times.json"))
    one.start(measure, HERE, tmp_path / "unused")
    assert one.costs(1, GAMMA, 0) is not None
    assert "--step-time-profile" in caplog.text


def test_off_neither_reads_nor_writes(draft: Path, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    knowledge(draft, profile=OFF).start(measure, HERE, path)
    assert not path.exists()


def test_without_step_times_nothing_is_priced_or_predicted(draft: Path) -> None:
    one = knowledge(draft)
    assert one.costs(1, GAMMA, 0) is None
    one.observe_time(1, 2, 1, 10, 0.1)
    assert one.step_time is None


def test_times_are_learnt_from_every_step_then_from_some_and_where_drafting_begins_or_ends(
    draft: Path, tmp_path: Path
) -> None:
    one = knowledge(draft, profile=OFF)
    one.start(measure, HERE, tmp_path / "unused")
    model = one.step_time
    assert model is not None
    for _ in range(TIMED_FIRST):
        one.observe_time(1, 2, 1, 64, 0.01)
    assert model.observations == TIMED_FIRST
    for _ in range(2 * TIMED_EVERY):
        one.observe_time(1, 2, 1, 64, 0.01)
    assert model.observations == TIMED_FIRST + 2
    for drafted in (0, 1, 0):
        one.observe_time(1, 0, drafted, 64, 0.01)
    assert model.observations == TIMED_FIRST + 5


def test_online_learning_can_be_switched_off(draft: Path, tmp_path: Path) -> None:
    one = knowledge(draft, online=False, profile=OFF)
    one.start(measure, HERE, tmp_path / "unused")
    assert one.step_time is not None
    for _ in range(50):
        one.observe_time(1, 2, 1, 64, 0.5)
        one.observe_rounds(np.zeros((8, GAMMA), np.float32), np.full(8, 3), np.zeros(8, int), np.zeros(8, bool))
    assert one.step_time.observations == 0
    assert one.state()["calibration"]["greedy"]["rounds"] == 0


def test_rounds_reach_the_calibration_in_portions(draft: Path) -> None:
    one = knowledge(draft)
    portion = (np.zeros((5, GAMMA), np.float32), np.full(5, 3), np.full(5, 1), np.arange(5) % 2 == 1)
    calls = PORTION // 5 + 1
    for _ in range(calls):
        assert one.state()["calibration"]["greedy"]["rounds"] == 0
        one.observe_rounds(*portion)
    shown = one.state()["calibration"]
    assert (shown["greedy"]["rounds"], shown["sampled"]["rounds"]) == (3 * calls, 2 * calls)


def test_the_calibration_beside_the_draft_is_used(draft: Path) -> None:
    store_calibration(draft, draft / FILE_NAME)
    one = knowledge(draft)
    assert one.calibration_source == FILE_NAME
    scaled = one.calibrated(np.full((2, GAMMA), 4.0, np.float32), np.array([0, 1]))
    assert np.allclose(scaled, 2.0)
    assert knowledge(draft, calibration=OFF).calibration_source == "off"


def test_a_calibration_of_another_draft_is_left_out_unless_it_was_named(
    draft: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_calibration(draft, draft / FILE_NAME)
    (draft / "model.safetensors").write_bytes(b"other weights")
    one = knowledge(draft)
    assert one.calibration_source == "refused"
    assert "other draft weights" in caplog.text
    assert np.allclose(one.calibration.inverse_temperatures, 1.0)
    with pytest.raises(CalibrationError, match="other draft weights"):
        knowledge(draft, calibration=str(draft / FILE_NAME))
    with pytest.raises(CalibrationError, match="there is no"):
        knowledge(draft, calibration=str(tmp_path / "absent.json"))


def test_where_nothing_could_be_measured_serving_starts_without_step_times(
    draft: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = knowledge(draft)
    one.start(list, HERE, tmp_path / "times.json")
    assert one.costs(1, GAMMA, 0) is None
    assert "too small" in caplog.text
    assert not (tmp_path / "times.json").exists()
