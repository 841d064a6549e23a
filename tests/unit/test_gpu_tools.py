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

import gpu_timings  # noqa: E402

from dspark_sglang import draft_graph  # noqa: E402
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
