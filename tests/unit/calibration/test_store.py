"""The calibration file: what it holds, and for which drafts it is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from sgl_dspark.calibration import store
from sgl_dspark.calibration.choose import fit_kind
from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.store import Calibration, KindCalibration
from sgl_dspark.errors import CalibrationError
from tests.support.rounds import GAMMA, Traffic

SHA = "ab" * 32


@pytest.fixture
def made() -> Calibration:
    fit, held_out = Traffic(1.5).draw(3000, np.random.default_rng(0)).split(0.3)
    nothing = KindCalibration(CalibrationMap.identity(GAMMA))
    return Calibration(GAMMA, SHA, fit_kind(fit, held_out, "affine"), nothing, {"prompts": 12, "date": "2026-01-01"})


@pytest.fixture
def file(made: Calibration, tmp_path: Path) -> Path:
    path = tmp_path / store.FILE_NAME
    made.save(path)
    return path


def test_everything_survives(made: Calibration, file: Path) -> None:
    read = store.load(file, gamma=GAMMA, draft_sha256=SHA)
    assert read.greedy.map.temperatures == pytest.approx(made.greedy.map.temperatures, rel=1e-12)
    assert read.greedy.map.biases.tolist() == made.greedy.map.biases.tolist()
    assert read.greedy.method == "affine"
    assert read.greedy.before == made.greedy.before
    assert read.greedy.after == made.greedy.after
    assert read.sampled.map.is_identity
    assert read.data == made.data
    assert [path.name for path in file.parent.iterdir()] == [store.FILE_NAME]


def test_the_file_is_readable_by_others(file: Path) -> None:
    content = json.loads(file.read_text())
    assert content["schema"] == 1
    assert content["gamma"] == len(content["greedy"]["temperatures"]) == GAMMA
    assert content["sampled"]["temperatures"] == [1.0] * GAMMA
    assert set(content["greedy"]["before"][0]) >= {"ece", "auroc", "brier", "count"}


def test_another_gamma_is_refused(file: Path) -> None:
    with pytest.raises(CalibrationError, match="made for gamma 7, the draft has 4"):
        store.load(file, gamma=4, draft_sha256=SHA)


def test_other_weights_are_refused(file: Path) -> None:
    with pytest.raises(CalibrationError, match="other draft weights .*abababababab.*cdcdcdcdcdcd"):
        store.load(file, gamma=GAMMA, draft_sha256="cd" * 32)
    assert store.load(file, gamma=GAMMA, draft_sha256=None).gamma == GAMMA


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="dspark calibrate"):
        store.load(tmp_path / "none.json", gamma=GAMMA, draft_sha256=SHA)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '"text"', "null"])
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(CalibrationError, match="calibrate again"):
        store.load(path, gamma=GAMMA, draft_sha256=SHA)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("schema", 2, "schema 2"),
        ("gamma", 6, "slots"),
        ("greedy", {"method": "sts", "temperatures": [1] * 7, "biases": [0] * 6, "before": [], "after": []}, "length"),
        (
            "greedy",
            {"method": "sts", "temperatures": [0] * 7, "biases": [0] * 7, "before": [], "after": []},
            "positive",
        ),
        (
            "greedy",
            {"method": "sts", "temperatures": [-1] * 7, "biases": [0] * 7, "before": [], "after": []},
            "positive",
        ),
    ],
)
def test_values_that_cannot_be_are_refused(file: Path, field: str, value: object, said: str) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, field: value}))
    with pytest.raises(CalibrationError, match=said):
        store.load(file, gamma=GAMMA, draft_sha256=SHA)


def test_one_weights_file_hashes_as_sha256sum_does(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    whole = hashlib.sha256(b"weights").hexdigest()
    assert store.draft_sha256(tmp_path) == whole
    assert store.draft_sha256(tmp_path / "model.safetensors") == whole
    (tmp_path / "model-2.safetensors").write_bytes(b"more")
    assert store.draft_sha256(tmp_path) not in (whole, "")
    with pytest.raises(CalibrationError, match="safetensors"):
        store.draft_sha256(tmp_path / "none")
