"""The tools that measure on a GPU, run on a CPU for their logic: what they time is what serves."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sglang")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import gpu_serving  # noqa: E402
import gpu_timings  # noqa: E402

from dspark_sglang import draft_graph  # noqa: E402
from dspark_sglang.bench.session import Plan  # noqa: E402
from sgl_dspark.errors import LaunchError  # noqa: E402
from tests.support.drafts import tiny_config  # noqa: E402
from tests.support.fake_graph import FakeGraph  # noqa: E402
from tests.support.paged_reference import ReferencePagedPrefill  # noqa: E402

CPU = torch.device("cpu")


class Clock:
    """Runs what is to be timed."""

    def __init__(self) -> None:
        self.timed: list[str] = []

    def __call__(self, run: Any) -> str:
        run()
        self.timed.append("device")
        return "1 (1-1)"

    def host(self, run: Any) -> str:
        run()
        self.timed.append("host")
        return "1 (1-1)"


@torch.no_grad()
def test_the_draft_that_is_timed_is_the_one_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sample_block", "admit", "survival_of"):
        assert getattr(gpu_timings, name) is getattr(draft_graph, name)
    monkeypatch.setattr("sgl_dspark.model.packed.can_pack", lambda weight: False)
    config = replace(tiny_config("vanilla"), max_position_embeddings=64)
    heads = replace(gpu_timings.HEADS, queries=4, keys=2, dim=6, scale=6**-0.5)
    small = {
        "DRAFT": config,
        "GAMMA": config.gamma,
        "HEADS": heads,
        "REQUESTS": (1, 3),
        "DRAFT_CONTEXT": 8,
        "SHORTLIST": 9,
    }
    for name, value in small.items():
        monkeypatch.setattr(gpu_timings, name, value)
    monkeypatch.setattr(gpu_timings, "workspace_bytes", lambda *_: 0)
    clock, graphs = Clock(), []

    def graph() -> FakeGraph:
        graphs.append(FakeGraph())
        return graphs[-1]

    rows = gpu_timings.draft_rows(clock, CPU, graph, ReferencePagedPrefill)
    assert [row[0] for row in rows] == ["1", "3"]
    assert clock.timed == ["device", "host", "device", "device", "device"] * 2
    assert [graph.replays for graph in graphs] == [1] * 6
    header = ["requests", "eager", "plan", "replay", "loop", "rank"]
    assert {len(row) for row in rows} == {len(header)}
    assert gpu_timings.table(header, rows).count("\n") == 3


def test_workers_are_compared_on_equal_terms(tmp_path: Path) -> None:
    flags = ["--dtype", "bfloat16", "--max-verify-budget", "20"]
    plain, upstream, ours = gpu_serving.compose("target", "draft", flags, tmp_path)
    assert [arm.name for arm in (plain, upstream, ours)] == ["plain", "upstream", "ours"]
    assert [arm.environment.get("SGL_DSPARK_WORKER") for arm in (plain, upstream, ours)] == [None, "upstream", "ours"]
    assert "--max-verify-budget" not in plain.command
    assert "--speculative-draft-model-path" in upstream.command
    assert "--attention-backend" not in ours.command
    for arm in (plain, upstream, ours):
        assert arm.command[-2 - 2 * (arm is not plain)] == "--dtype"


def test_a_worker_that_does_not_serve_is_named_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def session(arms: Any, plan: Plan, runs: Any, log: Any) -> None:
        started.append(arms[0].name)
        if arms[0].name == "upstream":
            raise LaunchError("it ended")

    monkeypatch.setattr(gpu_serving, "run_session", session)
    arms = gpu_serving.compose("target", "draft", [], tmp_path)
    runs, failed = gpu_serving.compare(arms, Plan((), rounds=2))
    assert started == ["plain", "upstream", "ours", "ours", "plain"]
    assert failed == {"upstream": "it ended"}
    totals = {"predicted_s": 0.9, "predicted_actual_s": 1.0, "timed_steps": 50}
    arms[2].states.append({"totals": totals, "predicted": {"step_time_error": 0.05}, "mean_verify_len": None})
    text = gpu_serving.page(arms, runs, failed)
    assert "| 1 | 50 | 0.900 | 0.050 | - |" in text
    assert "upstream did not serve: it ended" in text
