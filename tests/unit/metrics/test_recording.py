"""What the worker's scheduler hands to the recorder, and what is read of counts that others keep; needs SGLang."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")

from prometheus_client import CollectorRegistry

from dspark_sglang.metrics import recording
from dspark_sglang.metrics.definitions import DEFAULT_SLA
from dspark_sglang.metrics.phases import PhaseClock
from dspark_sglang.metrics.recorder import Recorder
from dspark_sglang.metrics.recording import Recording
from dspark_sglang.metrics.sheet import Sheet
from sgl_dspark.planner.config import PlannerConfig
from tests.support.scheduling_world import GAMMA, PLAIN_DRAFTS, World

NAMES = ("version", "sglang", "target", "draft", "gamma", "head")


class Recorded:
    """A scheduler whose steps are recorded and exported into a registry."""

    def __init__(self, tmp_path: Path, config: PlannerConfig) -> None:
        self.world, self.registry = World(tmp_path, config), CollectorRegistry()
        recorder = Recorder(9, PhaseClock())
        self.world.scheduler.recorder = recorder
        sheet = Sheet(GAMMA, DEFAULT_SLA)
        identity = dict.fromkeys(NAMES, "x")
        self.recording = Recording(recorder, sheet, self.world.scheduler, identity, "m", self.registry)
        for i, request in enumerate(self.world.requests):
            # As much of SGLang's requests as the recorder looks at.
            shown: Any = request
            shown.rid, shown.kv, shown.output_ids = f"r{i}", SimpleNamespace(req_pool_idx=i + 1), [0]
            shown.finished_len = shown.finished_reason = None

    def value(self, name: str, **labels: str) -> float | None:
        self.recording.exporter.export()
        return self.registry.get_sample_value(name, {"model_name": "m", **labels})


def test_a_step_of_the_scheduler_is_counted_with_its_parts(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, PlannerConfig("static"))
    recorder, world = recorded.recording.recorder, recorded.world
    recorder.streamed(world.requests)
    world.step(PLAIN_DRAFTS)
    world.step(PLAIN_DRAFTS)
    world.scheduler.learn([2, 0])
    for request, new in zip(world.requests, (3, 1), strict=True):
        request.output_ids += [0] * new  # type: ignore[attr-defined]
    recorder.streamed(world.requests)
    assert recorded.value("dspark_steps_total", policy="static", mode="drafted") == 2.0
    assert recorded.value("dspark_step_seconds_count", mode="drafted") == 1.0
    assert recorded.value("dspark_accepted_tokens_total") == 2.0
    assert recorded.value("dspark_bonus_tokens_total", source="verify") == 2.0
    assert recorded.value("dspark_bonus_tokens_total", source="prefill") == 2.0
    # Of the first request all three drafts were verified and two accepted, so that three are judged; of the second one.
    judged = [recorded.value("dspark_calibration_judged_total", bin=f"{i / 10:.1f}") for i in range(10)]
    assert judged == [0, 0, 0, 0, 0, 0, 0, 0, 0, 4]
    phases = [recorded.value("dspark_phase_seconds_total", phase=name) for name in ("plan", "draft", "rank", "verify")]
    assert all(value is not None and value > 0 for value in phases)


def test_fallbacks_of_planner_and_ledger_go_on_when_their_totals_start_over(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, PlannerConfig())
    scheduler = recorded.world.scheduler
    scheduler.planner.fallbacks["low_gain"] += 3
    scheduler.ledger.fallbacks["confidence_late"] += 1
    scheduler.planner.fallbacks["brand_new"] += 1
    assert recorded.value("dspark_fallbacks_total", reason="low_gain") == 3.0
    scheduler.clear_totals()
    scheduler.planner.fallbacks["low_gain"] += 2
    assert recorded.value("dspark_fallbacks_total", reason="low_gain") == 5.0
    assert recorded.value("dspark_fallbacks_total", reason="confidence_late") == 1.0
    assert recorded.value("dspark_fallbacks_total", reason="other") == 1.0


def test_the_policy_in_force_is_the_one_with_a_one(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, PlannerConfig())
    recorded.recording.exporter.export()
    recorded.world.scheduler.planner.configure(PlannerConfig("static", verify_drafts=2))
    recorded.recording.exporter.export()
    samples = [s for family in recorded.registry.collect() for s in family.samples if s.name == "dspark_policy_info"]
    assert sorted((s.labels["policy"], s.value) for s in samples) == [("adaptive", 0.0), ("static", 1.0)]


def test_without_a_recording_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ACTIVE", None)
    result = object()
    assert recording.after_stream(result, None, [object()]) is result
    assert recording.after_abort(result, None, None, None) is result
    recording.finished("r")


def test_the_hooks_feed_the_recording_that_is_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path, PlannerConfig())
    monkeypatch.setattr(recording, "ACTIVE", recorded.recording)
    first, second = recorded.world.requests
    recording.after_stream(None, None, [first, second], False, second)
    assert recorded.value("dspark_bonus_tokens_total", source="prefill") == 1.0
    recording.after_abort(None, None, None, second)
    assert recorded.value("dspark_requests_finished_total", finish="abort") == 1.0
