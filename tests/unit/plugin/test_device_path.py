"""Decoding by the device path, step after step, against the target alone; the target is tiny, the draft a real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sglang")
from dspark_sglang.allocation import DevicePlan
from dspark_sglang.attention.window import FlatTokens
from dspark_sglang.device_path import build_device_path
from dspark_sglang.device_window import DeviceWindow
from dspark_sglang.sampling_bridge import RowSampling
from tests.support.device_world import CPU, MOST, NEW, World
from tests.support.fake_graph import FakeGraph
from tests.support.paged_reference import ReferencePagedPrefill


@pytest.mark.parametrize("graphs", [True, False])
@torch.no_grad()
def test_greedy_text_is_the_targets(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    """Requests come and end, some are left out of drafting, plain steps lie between; budgets change in every step."""
    world, alone = World(monkeypatch, graphs=graphs), World(monkeypatch, graphs=False)
    want = [alone.alone(request) for request in range(MOST)]
    world._patch(monkeypatch)
    generator, texts, turn = np.random.default_rng(1), dict[int, list[int]](), 0
    got: dict[int, list[int]] = {}
    waiting, accepted = [0, 1, 2], 0
    while texts or waiting:
        if waiting and turn % 2 == 0:
            request = waiting.pop(0)
            texts[request] = [world.prefill(request)]
        accepted += world.step(texts, generator, turn)
        turn += 1
        for request in [r for r, text in texts.items() if len(text) >= NEW]:
            got[request] = texts.pop(request)[:NEW]
    assert accepted > 0
    assert [got[request] for request in range(MOST)] == want
    if graphs:
        assert not world.fallbacks
    else:
        assert set(world.fallbacks) == {"draft_graph_failed", "target_graph_failed"}


def test_a_backend_of_sglang_leaves_ranking_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, graphs=False)
    worker: Any = SimpleNamespace(
        model_runner=SimpleNamespace(attn_backend=object()), drafter=world.drafter, parts=None, device=CPU
    )
    assert build_device_path(worker) is None


def test_what_flashinfer_cannot_attend_leaves_ranking_to_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, graphs=False)
    world.target.backend.obstacle = "a head dim of 4"
    worker: Any = SimpleNamespace(
        model_runner=world.target.runner,
        drafter=world.drafter,
        parts=SimpleNamespace(pool=world.pool),
        device=CPU,
    )
    assert build_device_path(worker) is None
    assert "a head dim of 4" in caplog.text


def test_buffers_that_cannot_be_made_leave_ranking_to_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, graphs=False)

    def no_memory(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("dspark_sglang.device_path.PageTable", no_memory)
    assert build_device_path(world.worker, ReferencePagedPrefill, lambda pool: FakeGraph()) is None
    assert world.fallbacks == {"device_path_failed": 1}
    assert caplog.records[-1].exc_info is not None


@torch.no_grad()
def test_what_fills_a_tier_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verification's tier may hold more rows than the draft's; a draft of the same requests then needs no flush."""
    world = World(monkeypatch, graphs=True)
    texts = {r: [world.prefill(r)] for r in range(2)}
    rows, room = RowSampling.greedy(2, CPU), np.full(2, world.gamma)
    features = torch.zeros(2 * world.width + 6, world.drafter.config.num_features)
    running = world.running(texts, rows)
    plan = DevicePlan(2 * world.gamma, room, np.zeros_like(room), 2 * world.gamma)
    proposal = world.path.propose(running, plan)
    found = world.path.verify(running, plan, proposal)[2]
    fills = FlatTokens.of(found.verify_lens, torch.arange(len(features)))
    world.path.commit(features, DeviceWindow(found.verify_lens, found.positions, found.slots, fills))
    assert world.path.inputs.committed_rows == 2 * world.width
