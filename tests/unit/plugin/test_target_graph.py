"""Verification by lengths that only the device knows, eager and by replay, against lengths that the host knows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("sglang")
from dspark_sglang.attention.flashinfer import Capacity, PagedAttention, PageTable
from dspark_sglang.device_window import DeviceWindow
from dspark_sglang.target_graph import Round, TargetGraphs, Verified, verify_eagerly
from dspark_sglang.verify import VerifyInput, VerifyWindow
from tests.support.fake_graph import FakeGraph, NoSync, place
from tests.support.paged_reference import ReferencePagedPrefill
from tests.support.tiny_ragged_target import VOCAB, TinyTarget

CPU = torch.device("cpu")
MOST, W, WIDTH = 4, 5, 40


def make_table() -> Tensor:
    """Rows of whole pages of four slots; row 0 is nobody's."""
    generator = torch.Generator().manual_seed(3)
    pages = torch.randperm(MOST * WIDTH // 4, generator=generator) + 1
    slots = (pages.unsqueeze(1) * 4 + torch.arange(4)).view(MOST, WIDTH)
    return torch.cat([torch.zeros(1, WIDTH, dtype=torch.int64), slots]).to(torch.int32)


TABLE = make_table()


def make_target(page_size: int = 1) -> TinyTarget:
    return TinyTarget((MOST * WIDTH // 4 + 1) * 4, TABLE, page_size)


def make_round(seed: int, count: int, tail: int = 0) -> Round:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(MOST, generator=generator)[:count] + 1
    prefix = torch.randint(1, WIDTH - W, (count,), generator=generator)
    lens = torch.randint(1, W + 1, (count,), generator=generator)
    bounds = [int(torch.randint(n, W + 1, (), generator=generator)) for n in lens.tolist()]
    positions = prefix.unsqueeze(1) + torch.arange(W)
    return Round(
        anchors=torch.randint(VOCAB, (count,), generator=generator),
        verify_lens=lens,
        drafts=torch.randint(VOCAB, (count, W - 1), generator=generator),
        positions=positions,
        slots=TABLE[rows.unsqueeze(1), positions].long(),
        request_rows=rows,
        prefix_lens=prefix.tolist(),
        bounds=bounds,
        most=min(int(lens.sum()) + tail, sum(bounds)),
    )


def from_the_host(target: TinyTarget, step: Round) -> tuple[VerifyWindow, Tensor, Tensor]:
    """Verify as a host does that knows every length: exactly those rows, no padding."""
    lens = step.verify_lens.tolist()
    packed = torch.tensor([r * W + i for r, n in enumerate(lens) for i in range(n)])
    qo_indptr = torch.tensor([0, *step.verify_lens.cumsum(0).tolist()])
    window = VerifyWindow(step.prefix_lens, step.verify_lens, lens, step.positions, step.slots, qo_indptr, packed)
    tokens = window.pack(torch.cat([step.anchors.unsqueeze(1), step.drafts], 1))
    made = VerifyInput.of(tokens, window)
    target.backend.init_forward_metadata(target.batch(step.request_rows, made))
    return window, *target.forward(tokens, made.positions, window.pack(window.slots))


def check(got: Verified | None, want: tuple[VerifyWindow, Tensor, Tensor]) -> None:
    window, logits, features = want
    assert got is not None
    rows = len(logits)
    torch.testing.assert_close(got.logits[:rows], logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.features[:rows], features, rtol=1e-4, atol=1e-5)
    assert torch.equal(got.window.verify_lens, window.verify_lens)
    assert torch.equal(got.window.pack(got.window.slots)[:rows], window.pack(window.slots))
    assert not got.window.pack(got.window.slots)[rows:].any()
    torch.testing.assert_close(got.window.unpack(got.logits), window.unpack(logits), rtol=1e-4, atol=1e-5)
    values = torch.arange(len(window.verify_lens)) + 7
    assert torch.equal(got.window.per_row(values, len(got.logits))[:rows], window.per_row(values, rows))


def same_context(target: TinyTarget, twin: TinyTarget) -> None:
    """Give the twin what is committed; slots past a request's rows differ, which no later round may see."""
    for name in ("keys", "values"):
        getattr(twin.pool, name).copy_(getattr(target.pool, name))


class World:
    """Graphs of a tiny target that run on the CPU."""

    def __init__(self, page_size: int = 1, pages: int = MOST * WIDTH, make_graph: Any = FakeGraph) -> None:
        self.target = make_target(page_size)
        self.fallbacks: Counter[str] = Counter()
        self.made: list[FakeGraph] = []
        self.attentions: list[PagedAttention] = []

        def graph() -> Any:
            self.made.append(make_graph())
            return self.made[-1]

        def attention(capacity: Capacity) -> PagedAttention:
            heads = self.target.backend.heads
            self.attentions.append(PagedAttention(heads, CPU, torch.empty(0), capacity, ReferencePagedPrefill))
            return self.attentions[-1]

        self.graphs = TargetGraphs(
            forward=self.target.flat,
            prepare=self.target.backend.prepare,
            requests=MOST,
            width=W,
            table=PageTable(pages, CPU),
            device=CPU,
            make_attention=attention,
            make_graph=graph,
            count=lambda name: self.fallbacks.update([name]),
            page_size=page_size,
        )


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("tail", [0, 3])
def test_a_replay_equals_a_verification_planned_from_the_host(page_size: int, tail: int) -> None:
    world, twin = World(page_size), make_target(page_size)
    assert world.graphs.capture(TABLE) == len(world.graphs.tiers)
    for seed, count in enumerate((4, 1, 3, 2, 4)):
        step = make_round(seed, count, tail)
        same_context(world.target, twin)
        got = world.graphs.run(step, TABLE)
        check(got, from_the_host(twin, step))
        assert got is not None
        assert len(got.logits) in world.graphs.tiers
    assert not world.fallbacks


@pytest.mark.parametrize("page_size", [1, 4])
def test_so_does_one_without_a_graph(page_size: int) -> None:
    target, twin = make_target(page_size), make_target(page_size)
    for seed, count in enumerate((4, 1, 3)):
        step = make_round(seed, count, tail=2)
        same_context(target, twin)
        check(verify_eagerly(step, target.planned(step), torch.arange(100)), from_the_host(twin, step))


def test_a_replay_reads_its_buffers_the_weights_and_the_pool_and_nothing_else() -> None:
    world = World()
    world.graphs.capture(TABLE)
    plans = [buffer for own in world.attentions for buffer in own._wrapper.buffers]
    known = [*world.graphs.buffers(), *world.target.weights(), *plans]
    for graph in world.made:
        unknown = [t for t in graph.unknown(known) if t.numel() > 1]
        assert not unknown, [tuple(t.shape) for t in unknown]
        assert world.graphs._outputs is not None
        assert set(graph.writes) == {place(t) for t in (world.target.pool.keys, *world.graphs._outputs)}


def test_results_of_every_tier_lie_in_one_place() -> None:
    """What a graph computes them in is then free for the others: its logits were 6 GB for the tiers of 256 requests."""
    world = World()
    world.graphs.capture(TABLE)
    kept = world.graphs._outputs
    assert kept is not None
    assert len(kept[0]) == len(kept[1]) == world.graphs.tiers[-1]
    for seed, count in ((1, 1), (2, MOST)):
        got = world.graphs.run(make_round(seed, count), TABLE)
        assert got is not None
        assert (place(got.logits), place(got.features)) == (place(kept[0]), place(kept[1]))


def test_nothing_between_draft_and_verdict_waits_for_the_device() -> None:
    """What depends on the lengths is laid out by operations of fixed shape; the host plans from bounds."""
    target, step = make_target(), make_round(2, 3, tail=2)
    target.planned(step)
    with NoSync():
        got = verify_eagerly(step, lambda flat: (torch.zeros(step.most, VOCAB), torch.zeros(step.most, 3)), COUNTING)
        assert isinstance(got.window, DeviceWindow)
        got.window.pack(got.window.positions)
        got.window.unpack(got.logits)
        got.window.per_row(step.anchors, step.most)


COUNTING = torch.arange(100)


def test_padding_writes_the_padding_slot_alone() -> None:
    world = World()
    world.graphs.capture(TABLE)
    step = make_round(1, 2, tail=3)
    before = world.target.pool.keys.clone()
    world.graphs.run(step, TABLE)
    changed = (world.target.pool.keys != before).flatten(2).any(-1).any(0).nonzero().flatten().tolist()
    planned = {int(s) for r, n in enumerate(step.bounds) for s in step.slots[r, :n]}
    assert set(changed) <= planned | {0}


def test_what_fits_no_graph_falls_back_with_a_reason() -> None:
    world = World(pages=20)
    world.graphs.capture(TABLE)
    step = make_round(1, 2)
    assert world.graphs.run(replace(step, most=10**6), TABLE) is None
    assert world.graphs.run(replace(step, prefix_lens=[30, 30]), TABLE) is None
    assert world.fallbacks == {"target_graph_size": 1, "target_graph_pages": 1}


@pytest.mark.parametrize(
    "error", [RuntimeError("operation not permitted when stream is capturing"), ValueError("plan")]
)
def test_failed_capture_falls_back_with_a_reason(error: Exception) -> None:
    class Broken(FakeGraph):
        def capture(self, run: Any) -> None:
            raise error

    world = World(make_graph=Broken)
    assert world.graphs.capture(TABLE) == 0
    assert world.graphs.run(make_round(1, 2), TABLE) is None
    assert world.fallbacks == {"target_graph_failed": 1}
