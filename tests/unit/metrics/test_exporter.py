"""What prometheus_client is told: every series from the start, what its own API would say, several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from dspark_sglang.metrics.definitions import METRICS
from dspark_sglang.metrics.exporter import MOST_INFO, OTHER_INFO, Exporter
from tests.support import prometheus
from tests.support.recorded import Engine, Request

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
from dspark_sglang.metrics.exporter import Exporter
from tests.support.recorded import Engine, Request
engine = Engine()
exporter = Exporter(engine.fold, "m", lambda sheet: {})
requests = [Request("a", 1), Request("b", 2)]
engine.prefill(requests)
step = engine.launch(requests, [3, 3])
engine.verdict(step, [2, 1])
engine.stream(step)
exporter.start()
exporter.touch()
exporter.stop()
"""


def exported(engine: Engine, registry: CollectorRegistry) -> Exporter:
    return Exporter(engine.fold, "m", lambda sheet: {}, registry)


def one_step(engine: Engine) -> None:
    requests = [Request("a", 1), Request("b", 2)]
    engine.prefill(requests)
    step = engine.launch(requests, [3, 1], policy="static")
    engine.recorder.timed(step, 0.01, 0.0125)
    engine.verdict(step, [2, 0])
    engine.stream(step)


def test_every_series_is_there_before_anything_happens() -> None:
    registry = CollectorRegistry()
    exported(Engine(), registry).export()
    text = generate_latest(registry).decode()
    for metric in METRICS:
        assert f"# HELP {metric.name}" in text
        if not metric.free:
            assert f"{metric.name}{'_count' if metric.kind == 'histogram' else ''}{{" in text, metric.name


def test_histograms_are_what_observing_one_by_one_gives() -> None:
    engine, registry = Engine(), CollectorRegistry()
    exporter = exported(engine, registry)
    for _ in range(2):
        one_step(engine)
        exporter.export()
    edges = engine.sheet.edges["dspark_verify_length_tokens"]
    labels = ("model_name", "policy")
    other = CollectorRegistry()
    plain = Histogram("dspark_verify_length_tokens", "x", labels, registry=other, buckets=edges)
    for value in (4, 2, 4, 2):
        plain.labels("m", "static").observe(value)
    for suffix, extra in (("_sum", {}), ("_count", {}), ("_bucket", {"le": "2.0"}), ("_bucket", {"le": "+Inf"})):
        name, key = f"dspark_verify_length_tokens{suffix}", {"model_name": "m", "policy": "static", **extra}
        assert registry.get_sample_value(name, key) == other.get_sample_value(name, key)


def test_counters_go_on_and_gauges_are_set() -> None:
    engine, registry = Engine(), CollectorRegistry()
    drift = engine.sheet.view("dspark_calibration_drifting")
    exporter = exported(engine, registry)
    for expected in (1.0, 2.0):
        one_step(engine)
        drift[:] = expected % 2
        exporter.export()
        key = {"model_name": "m", "policy": "static", "mode": "drafted"}
        assert registry.get_sample_value("dspark_steps_total", key) == expected
        kind = {"model_name": "m", "kind": "greedy"}
        assert registry.get_sample_value("dspark_calibration_drifting", kind) == expected % 2


def test_information_that_no_longer_holds_is_zero_and_its_number_is_bounded() -> None:
    engine, registry, seen = Engine(), CollectorRegistry(), 0
    exporter = Exporter(engine.fold, "m", lambda sheet: {"dspark_policy_info": {("static", str(seen)): 1.0}}, registry)
    for seen in range(MOST_INFO + 5):  # noqa: B007 - the source reads it
        exporter.export()
    values = [
        registry.get_sample_value("dspark_policy_info", {"model_name": "m", "policy": "static", "settings": str(i)})
        for i in range(MOST_INFO + 5)
    ]
    assert values == [0.0] * MOST_INFO + [None] * 5


def test_what_is_in_force_is_exported_however_many_were_before() -> None:
    """Alerts ask whether the adaptive policy is in force; the digest of its settings may go, the policy not."""
    registry = CollectorRegistry()
    now: dict[str, dict[tuple[str, ...], float]] = {}
    exporter = Exporter(Engine().fold, "m", lambda sheet: now, registry)

    def in_force() -> list[tuple[str, str]]:
        exporter.export()
        samples = [s for family in registry.collect() for s in family.samples if s.name == "dspark_policy_info"]
        return [(s.labels["policy"], s.labels["settings"]) for s in samples if s.value == 1.0]

    for i in range(MOST_INFO + 3):
        now = {"dspark_policy_info": {("static", str(i)): 1.0}, "dspark_worker_info": {("x",) * 8: 1.0}}
        assert in_force() == [("static", str(i) if i < MOST_INFO else OTHER_INFO)]
    now = {"dspark_policy_info": {("adaptive", "new"): 1.0}}
    assert in_force() == [("adaptive", OTHER_INFO)]
    now = {"dspark_policy_info": {("static", "7"): 1.0}}
    assert in_force() == [("static", "7")]


def test_several_processes_add_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    for _ in range(2):
        subprocess.run([sys.executable, "-c", WRITER], cwd=ROOT, env=environment, check=True)
    reader = (
        "from prometheus_client import CollectorRegistry, generate_latest, multiprocess as m\n"
        "r = CollectorRegistry(); m.MultiProcessCollector(r); print(generate_latest(r).decode())"
    )
    text = subprocess.run(
        [sys.executable, "-c", reader], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert 'dspark_accepted_tokens_total{model_name="m"} 6.0' in text
    assert 'dspark_calibration_drifting{kind="greedy",model_name="m"} 0.0' in text
    assert 'dspark_bonus_tokens_total{model_name="m",source="verify"} 4.0' in text
    assert 'dspark_verify_length_tokens_count{model_name="m",policy="adaptive"} 4.0' in text


def test_promtool_finds_nothing_wrong_with_the_names() -> None:
    promtool = prometheus.require("promtool")
    registry = CollectorRegistry()
    exported(Engine(), registry).export()
    result = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(registry), capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr.decode() + result.stdout.decode()


def test_nan_is_written_once() -> None:
    engine, registry = Engine(), CollectorRegistry()
    engine.sheet.view("dspark_calibration_ece_ratio")[:] = np.nan
    exporter = exported(engine, registry)
    exporter.export()
    exporter.export()
    key = {"model_name": "m", "kind": "sampled"}
    value = registry.get_sample_value("dspark_calibration_ece_ratio", key)
    assert value is not None
    assert np.isnan(value)


def test_a_total_that_goes_back_waits_until_it_has_caught_up() -> None:
    engine, registry = Engine(), CollectorRegistry()
    exporter, name = exported(engine, registry), "dspark_ended_rounds_total"
    total = engine.fold.sheet.view(name)
    seen = []
    for value in (5, 3, 4, 6):
        total[...] = value
        exporter.export()
        seen.append(registry.get_sample_value(name, {"model_name": "m"}))
    assert seen == [5, 5, 5, 6]
