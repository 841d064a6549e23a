from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from dspark_sglang.commands import serve
from dspark_sglang.config import SCHEDULING_VARIABLE, SchedulingConfig
from dspark_sglang.scheduling_flags import set_scheduling
from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import POLICIES


def configured(*flags: str) -> SchedulingConfig:
    parser = ArgumentParser()
    serve.add_arguments(parser)
    set_scheduling(parser.parse_args(flags))
    return SchedulingConfig.from_environment()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCHEDULING_VARIABLE, "")


def test_without_flags_verification_is_adaptive_and_learns() -> None:
    config = configured()
    assert config == SchedulingConfig()
    assert (config.planner.policy, config.online) == ("adaptive", True)


def test_the_flags_offer_every_policy() -> None:
    assert sorted(serve.POLICIES) == sorted(POLICIES)


def test_every_flag_reaches_the_worker(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text("{}")
    config = configured(
        *("--policy", "threshold", "--confidence-threshold", "0.4", "--max-verify-budget", "9", "--min-gain", "0.1"),
        *("--calibration", str(file), "--step-time-profile", "off", "--no-online"),
    )
    planner = config.planner
    assert (planner.policy, planner.threshold, planner.max_budget, planner.min_gain) == ("threshold", 0.4, 9, 0.1)
    assert (config.calibration, config.profile, config.online) == (str(file), "off", False)
    assert configured("--policy", "static", "--verify-drafts", "3").planner.verify_drafts == 3


def test_flags_go_over_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCHEDULING_VARIABLE, json.dumps({"policy": "static", "max_age": 9, "verify_drafts": 1}))
    planner = configured("--verify-drafts", "2").planner
    assert (planner.policy, planner.verify_drafts, planner.max_age) == ("static", 2, 9)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--policy", "static", "--verify-drafts", "-1"), "--verify-drafts: "),
        (("--verify-drafts", "3"), "--policy static"),
        (("--max-verify-budget", "-2"), "--max-verify-budget"),
        (("--policy", "threshold"), "--confidence-threshold"),
        (("--confidence-threshold", "0.5"), "--policy threshold"),
        (("--policy", "threshold", "--confidence-threshold", "1.5"), "--confidence-threshold"),
        (("--min-gain", "nan"), "--min-gain"),
        (("--calibration", "/no/such/file"), "--calibration"),
    ],
)
def test_nonsense_is_refused_by_flag(flags: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        configured(*flags)


@pytest.mark.parametrize("text", ["{", "[]", '{"polcy": "static"}', '{"policy": "fast"}'])
def test_a_damaged_variable_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SCHEDULING_VARIABLE, text)
    with pytest.raises(ConfigError):
        SchedulingConfig.from_environment()
    with pytest.raises(ConfigError):
        configured("--policy", "adaptive")
