"""Nothing between two decode steps waits for the device to take what the host has: every copy is staged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sglang")
from dspark_sglang import sampling_bridge
from dspark_sglang import worker as worker_module
from dspark_sglang.allocation import DevicePlan
from dspark_sglang.bridge.head import HeadCalibration
from dspark_sglang.sampling_bridge import RowSampling
from dspark_sglang.worker import DsparkWorker
from sgl_dspark.planner.config import PlannerConfig
from sgl_dspark.sampling.block import DraftBlock
from tests.support import scheduling_world
from tests.support.device_world import CPU, World
from tests.support.sampling_batches import batch_info
from tests.support.staged_only import BlockingCopyError, staged_only
from tests.support.tiny_ragged_target import VOCAB

GAMMA = scheduling_world.GAMMA


@pytest.mark.parametrize("graphs", [True, False])
@torch.no_grad()
def test_a_step_that_the_device_ranks(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    world = World(monkeypatch, graphs=graphs)
    texts = {r: [world.prefill(r)] for r in range(3)}
    rows, room = RowSampling.greedy(3, CPU), np.array([2, 3, 0])
    running = world.running(texts, rows)
    plan = DevicePlan(3, room, np.zeros_like(room), 3)
    with staged_only(monkeypatch) as mode:
        drafted = torch.from_numpy(np.array([0, 1]))
        running = replace(running, drafted=drafted)
        proposal = world.path.propose(running, plan)
        if graphs:
            _, features, window = world.path.verify(running, plan, proposal)
            world.path.commit(features, window)
    assert mode.copies > 3


def test_a_step_whose_requests_are_not_all_drafted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = scheduling_world.World(tmp_path, PlannerConfig(policy="static"))
    step = world.begin()
    block = DraftBlock(torch.tensor([[0, 0, 0], [4, 5, 6]]), torch.zeros(2, GAMMA))
    verdict: Any = SimpleNamespace(
        out_tokens=torch.zeros(2, GAMMA + 1, dtype=torch.int64), accept_lens=torch.tensor([1, 2])
    )
    lens, survival = torch.tensor([2]), torch.full((1, GAMMA), 0.5)
    with staged_only(monkeypatch) as mode:
        step.drafted = torch.from_numpy(np.array([1]))
        assert world.scheduler.rank_on_device(step) is not None
        world.scheduler.launched(step, lens, survival)
        world.scheduler.end(step, block, verdict)
    assert mode.copies == 1


def test_a_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    output = SimpleNamespace(hidden_states=torch.zeros(5, 2))
    result = SimpleNamespace(next_token_ids=torch.zeros(2).long(), logits_output=output)
    monkeypatch.setattr(worker_module.compat, "forward_target_prefill", lambda worker, batch: result)
    written: list[Any] = []
    nothing = SimpleNamespace(before_prefill=lambda *_: None, after_prefill=lambda *_: None, interrupt=lambda _: None)
    own: Any = SimpleNamespace(
        scheduler=nothing,
        adjuster=nothing,
        device=CPU,
        _flush=lambda: None,
        _target_worker=None,
        parts=SimpleNamespace(write_context=lambda *given: written.extend(given)),
    )
    batch: Any = SimpleNamespace(
        extend_lens=[2, 3], prefix_lens=[0, 4], out_cache_loc=torch.arange(5), seq_lens=torch.tensor([2, 7])
    )
    with staged_only(monkeypatch) as mode:
        DsparkWorker._prefill(own, batch, lambda lens: None)
    assert mode.copies == 1
    assert written[1].tolist() == [0, 1, 4, 5, 6]


def test_a_new_calibration_of_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    head = HeadCalibration(SimpleNamespace(), 3, CPU)
    with staged_only(monkeypatch) as mode:
        head.follow(np.full(3, 2.0, np.float32), np.ones(3, np.float32))
    assert mode.copies == 2
    assert head._inverse.tolist() == [2.0] * 3
    assert head._biases.tolist() == [1.0] * 3


def on_an_accelerator(requested: list[dict[str, Any]]) -> RowSampling:
    """As the worker reads a batch whose tensors cannot be read without waiting."""
    info = batch_info(requested, VOCAB)
    names = ("temperature", "top_k", "top_p", "min_p")
    columns = (info.temperatures.view(-1), info.top_ks, info.top_ps, info.min_ps)
    own = [dict(zip(names, values, strict=True)) for values in zip(*(c.tolist() for c in columns), strict=True)]
    requests = [SimpleNamespace(sampling_params=SimpleNamespace(**one)) for one in own]
    there = replace(info, **{n: getattr(info, n).to("meta") for n in ("temperatures", "top_ks", "top_ps", "min_ps")})
    found = RowSampling.of(there, None, requests)
    assert found.on_host is not None
    assert all(part.device.type == "cpu" for part in found.on_host)
    return replace(RowSampling.of(info), on_host=found.on_host)


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"min_p": 0.2}, {"top_p": 0.7}, {"top_k": 5, "top_p": 0.7}])
@torch.no_grad()
def test_filters_are_read_from_the_requests(monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]) -> None:
    """The law is that of the tensors, and what is asked about them is asked of the host's copies."""
    requested = [{"temperature": 0.9, **filters}, {"temperature": 0}, {"temperature": 1.3, **filters}]
    window: Any = SimpleNamespace(per_row=lambda values, rows: values)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    rows, known = RowSampling.of(batch_info(requested, VOCAB)), on_an_accelerator(requested)
    assert rows.on_host is None
    want = rows.target_law(logits, window)
    assert torch.equal(known.target_law(logits, window), want)
    asked: list[Any] = []
    monkeypatch.setattr(sampling_bridge, "Filters", SimpleNamespace(of=lambda *given: asked.extend(given)))
    known.target_law(logits, window)
    assert known.on_host is not None
    assert [id(part) for part in asked[:4]] == [id(part) for part in known.on_host]


def test_what_would_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: each way in which a host tensor reaches a device by itself."""
    there, index = torch.zeros(3), np.array([0, 2])
    with staged_only(monkeypatch) as mode:
        for blocking in (
            lambda: torch.from_numpy(index).to(CPU),
            lambda: torch.from_numpy(index).to(CPU, non_blocking=True),
            lambda: mode.staged(torch.from_numpy(index), CPU).to(CPU),
            lambda: there[:2].copy_(torch.tensor([1.0, 2.0])),
            lambda: torch.tensor([1.0], device=CPU),
            lambda: there[torch.from_numpy(index)],
            lambda: there.index_add_(0, torch.from_numpy(index), there[:2]),
        ):
            with pytest.raises(BlockingCopyError):
                blocking()
        assert mode.staged(torch.from_numpy(index), CPU).to(CPU, non_blocking=True).tolist() == [0, 2]
