from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgl_dspark.errors import ProfileError, StaleProfileError
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel
from sgl_dspark.sps.store import Fingerprint, load, save

CONDITIONS: dict[str, str | int | float] = {
    "model": "target",
    "weights": "0a1b",
    "draft": "ffee",
    "gamma": 4,
    "device": "cpu",
    "device_name": "some processor",
    "threads": 2,
    "tp": 1,
    "dtype": "bfloat16",
    "backend": "dspark_cpu",
    "tiers": "1,2,4",
    "package": "0.1.0",
    "engine": "0.5.23",
    "memory_fraction": 0.5,
}


def a_model() -> StepTimeModel:
    return StepTimeModel(
        verify=Curve([1, 2, 4], [0.1, 0.1 + 1e-17, 0.3], stairs=True),
        draft=Curve([1, 3], [0.01, 0.02]),
        accept_s=1e-3,
        context_query_s=1.2345678901234567e-7,
        host_request_s=3e-4,
    )


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "profile.json"
    save(path, a_model(), Fingerprint(CONDITIONS))
    return path


def test_what_is_loaded_is_what_was_saved(profile: Path) -> None:
    loaded = load(profile, Fingerprint(CONDITIONS))
    for requests, gamma, context in ((1, 4, 0), (3, 7, 1000)):
        assert np.array_equal(
            loaded.step_times(requests, gamma, context), a_model().step_times(requests, gamma, context)
        )
    assert loaded.plain is None
    assert loaded.tiers is not None
    assert list(profile.parent.iterdir()) == [profile]


def test_a_plain_curve_is_kept(tmp_path: Path) -> None:
    model = StepTimeModel(verify=Curve([1], [1.0]), plain=Curve([1, 2], [0.5, 0.75]))
    save(tmp_path / "p.json", model, Fingerprint({}))
    assert load(tmp_path / "p.json", Fingerprint({})).plain_time(2, 0) == 0.75


@pytest.mark.parametrize("name", list(CONDITIONS))
def test_a_condition_that_differs_is_named_with_both_values(profile: Path, name: str) -> None:
    value = CONDITIONS[name]
    other = value + "x" if isinstance(value, str) else value + 1
    with pytest.raises(StaleProfileError) as refused:
        load(profile, Fingerprint(CONDITIONS | {name: other}))
    assert f"{name} was {value!r} when it was measured and is {other!r} now" in str(refused.value)


def test_the_first_of_several_differences_is_named(profile: Path) -> None:
    with pytest.raises(StaleProfileError, match="draft was 'ffee'"):
        load(profile, Fingerprint(CONDITIONS | {"threads": 9, "draft": "abcd"}))


def test_a_condition_that_only_one_side_knows_is_a_difference(profile: Path) -> None:
    with pytest.raises(StaleProfileError, match="new was 'nothing' when it was measured and is 1 now"):
        load(profile, Fingerprint(CONDITIONS | {"new": 1}))
    fewer = {name: value for name, value in CONDITIONS.items() if name != "tp"}
    with pytest.raises(StaleProfileError, match="tp was 1 when it was measured and is 'nothing' now"):
        load(profile, Fingerprint(fewer))


def test_conditions_are_text_or_numbers() -> None:
    with pytest.raises(ValueError, match="tiers of a fingerprint"):
        Fingerprint({"tiers": [1, 2]})  # type: ignore[dict-item]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"nowhere\.json cannot be read \(No such file"):
        load(tmp_path / "nowhere.json", Fingerprint({}))


def test_no_truncation_passes_for_a_profile(profile: Path) -> None:
    whole = profile.read_bytes().rstrip()
    for length in range(0, len(whole), 17):
        profile.write_bytes(whole[:length])
        with pytest.raises(ProfileError, match=r"profile\.json.* (is damaged|is not a step-time profile)"):
            load(profile, Fingerprint(CONDITIONS))


def test_bytes_that_are_no_text_are_damage(profile: Path) -> None:
    profile.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="damaged"):
        load(profile, Fingerprint(CONDITIONS))


def test_another_schema_is_refused(profile: Path) -> None:
    document = json.loads(profile.read_text())
    profile.write_text(json.dumps(document | {"schema": 99}))
    with pytest.raises(StaleProfileError, match="schema of .* is 99, not 1"):
        load(profile, Fingerprint(CONDITIONS))


def falling(model: dict[str, Any]) -> None:
    model["verify"]["seconds"].reverse()


def negative(model: dict[str, Any]) -> None:
    model["accept_s"] = -1.0


def words(model: dict[str, Any]) -> None:
    model["host_s"] = "fast"


def no_draft(model: dict[str, Any]) -> None:
    del model["draft"]


def null_verify(model: dict[str, Any]) -> None:
    model["verify"] = None


def not_finite(model: dict[str, Any]) -> None:
    model["context_token_s"] = float("nan")


@pytest.mark.parametrize("damage", [falling, negative, words, no_draft, null_verify, not_finite])
def test_a_model_that_makes_no_sense_is_damage(profile: Path, damage: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(profile.read_text())
    damage(document["model"])
    profile.write_text(json.dumps(document))
    with pytest.raises(ProfileError, match="damaged"):
        load(profile, Fingerprint(CONDITIONS))


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"schema": 1}', '{"schema": 1, "fingerprint": 3}'])
def test_json_that_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ProfileError, match="not a step-time profile"):
        load(tmp_path / "p.json", Fingerprint({}))
