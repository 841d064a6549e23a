"""Drafting by replay: what a graph reads and writes, that a replay equals the eager draft, and every way out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("sglang")
from dspark_sglang.graphs import request_tiers, tier_above, token_tiers
from tests.support.draft_world import MOST, World, check_equal
from tests.support.fake_graph import FakeGraph, place


@pytest.fixture(autouse=True)
def _no_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator."""
    monkeypatch.setattr("sgl_dspark.model.packed.can_pack", lambda weight: False)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("shortlist", "page_size"), [(9, 1), (None, 4)])
def test_a_replay_equals_the_eager_draft(greedy: bool, shortlist: int | None, page_size: int) -> None:
    """Steps of changing size; calibration, temperatures, budget and lengths change between replays."""
    world, twin = World(shortlist, page_size), World(shortlist, page_size)
    assert world.graphs.capture(world.table) == 2 * len(request_tiers(MOST))
    before = int(world.inputs.step)
    for number, count in enumerate((3, 4, 1, 2, 4), start=1):
        step = world.step(number, count, greedy=greedy, commits=number)
        scales, biases = torch.rand(3, world.gamma) + 0.5, torch.randn(3, world.gamma)
        world.inputs.calibrate(scales.numpy(), biases.numpy())
        want = twin.eager(step, before + number, scales, biases, greedy=greedy)
        check_equal(world.replayed(step, greedy=greedy), want, greedy=greedy)
    assert int(world.inputs.step) == before + 5
    torch.testing.assert_close(world.pool.buffer[:, :, 4:], twin.pool.buffer[:, :, 4:], rtol=1e-4, atol=1e-5)
    assert not world.fallbacks


def test_a_replay_reads_its_buffers_the_weights_and_the_pool_and_nothing_else() -> None:
    world = World()
    world.graphs.capture(world.table)
    plans = [buffer for own in world.graphs._attention.values() for buffer in own._wrapper.buffers]
    weights = [*world.drafter.parameters(), *world.drafter.buffers(), *world.drafter.rotary._tables.values()]
    known = [*world.inputs.buffers(), world.pool.buffer, *plans, *weights]
    fused = {place(t) for module in world.drafter.modules() for t in vars(module).values() if isinstance(t, Tensor)}
    for graph in world.graphs_made:
        unknown = [t for t in graph.unknown(known) if place(t) not in fused and t.numel() > 1]
        assert not unknown, [tuple(t.shape) for t in unknown]
        written = set(graph.writes)
        assert written <= {place(t) for t in (world.pool.buffer, world.inputs.step, world.inputs.committed.slots)}


def test_committed_rows_are_written_once() -> None:
    """A replay after one without a commit must not write slots that may belong to another request by now."""
    world = World()
    world.graphs.capture(world.table)
    first = world.step(1, 2, commits=3)
    world.replayed(first)
    assert first.committed is not None
    slots = first.committed[2]
    world.pool.buffer[:, :, slots] = 5.0
    second = world.step(2, 1)
    second.rows, second.lengths = torch.tensor([MOST]), [20]
    if int(first.rows[0]) == MOST:
        second.rows = torch.tensor([1])
    world.replayed(second)
    assert bool((world.pool.buffer[:, :, slots] == 5.0).all())


def test_what_waits_is_flushed_before_anything_else_runs() -> None:
    world, twin = World(), World()
    world.graphs.capture(world.table)
    twin.pool.buffer.copy_(world.pool.buffer)
    step = world.step(1, 2, commits=4)
    assert step.committed is not None
    world.inputs.commit(*step.committed)
    with pytest.raises(RuntimeError, match="flush before another step"):
        world.inputs.commit(*step.committed)
    world.graphs.flush()
    twin.pool.write_context(twin.drafter, *step.committed)
    assert torch.equal(world.pool.buffer, twin.pool.buffer)
    world.graphs.flush()
    assert world.inputs.committed_rows == 0


def test_more_committed_rows_than_the_tier_holds_are_flushed() -> None:
    world, twin = World(), World()
    world.graphs.capture(world.table)
    step = world.step(3, 1, commits=2 * (world.gamma + 1))
    scales, biases = torch.ones(3, world.gamma), torch.zeros(3, world.gamma)
    check_equal(world.replayed(step), twin.eager(step, int(world.inputs.step), scales, biases), greedy=False)
    torch.testing.assert_close(world.pool.buffer[:, :, 4:], twin.pool.buffer[:, :, 4:], rtol=1e-4, atol=1e-5)


def test_a_probe_verifies_its_whole_room() -> None:
    world = World()
    world.graphs.capture(world.table)
    step = world.step(5, 3)
    step.budget, step.room = 0, torch.tensor([2, 3, 1])
    step.least[1] = 3
    got = world.replayed(step)
    assert got is not None
    assert got.lens.tolist() == [0, 3, 0]


def test_numbers_are_fresh_at_every_replay_and_the_same_on_every_rank() -> None:
    world, rank = World(None), World(None)
    for each in (world, rank):
        each.graphs.capture(each.table)
    step = world.step(9, 4)
    step.temperatures = torch.full((4,), 50.0)
    drafts = []
    for _ in range(3):
        got, other = world.replayed(step), rank.replayed(step)
        assert got is not None
        assert other is not None
        assert torch.equal(got.block.tokens, other.block.tokens)
        drafts.append(got.block.tokens.clone())
    assert not torch.equal(drafts[0], drafts[1])
    assert not torch.equal(drafts[1], drafts[2])


class Broken:
    """Fails from the third capture on."""

    made = 0

    def __init__(self) -> None:
        Broken.made += 1
        self.fails = Broken.made > 2
        self.inner = FakeGraph()

    def capture(self, run: Any) -> None:
        if self.fails:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.inner.capture(run)

    def replay(self) -> None:
        self.inner.replay()


def test_failed_capture_falls_back_with_a_reason() -> None:
    Broken.made = 0
    world = World(make_graph=Broken)
    assert world.graphs.capture(world.table) == 2
    assert world.replayed(world.step(1, MOST)) is not None
    assert world.replayed(world.step(2, 1)) is None
    assert world.fallbacks == {"draft_graph_failed": 1}


@pytest.mark.parametrize("error", [ValueError("no plan for this head dim"), OSError("no compiler"), AssertionError()])
def test_whatever_a_kernel_raises_falls_back_with_a_reason(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FlashInfer's planner and Triton's compiler have errors of their own; the second tier's fails here."""
    world = World()
    make = world.graphs._make_attention

    def attention(capacity: Any) -> Any:
        if capacity.slots < MOST:
            raise error
        return make(capacity)

    monkeypatch.setattr(world.graphs, "_make_attention", attention)
    assert world.graphs.capture(world.table) == 2
    assert world.replayed(world.step(1, MOST)) is not None
    assert world.replayed(world.step(2, 1)) is None
    assert world.fallbacks == {"draft_graph_failed": 1}
    assert caplog.records[-1].exc_info is not None


def test_a_kernel_that_does_not_compile_falls_back_with_a_reason() -> None:
    class Uncompiled(FakeGraph):
        def capture(self, run: Any) -> None:
            raise KeyError("out of resource: shared memory")

    world = World(make_graph=Uncompiled)
    assert world.graphs.capture(world.table) == 0
    assert world.replayed(world.step(1, 2)) is None
    assert world.fallbacks == {"draft_graph_failed": 1}


def test_little_memory_falls_back_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before anything is made for the graph."""
    world = World()
    monkeypatch.setattr("dspark_sglang.graphs.enough_memory", lambda device: False)
    monkeypatch.setattr(world.graphs, "_make_attention", lambda capacity: pytest.fail("made without memory"))
    assert world.graphs.capture(world.table) == 0
    assert world.replayed(world.step(1, 2)) is None
    assert world.fallbacks == {"draft_graph_memory": 1}


def test_batches_beyond_the_largest_tier_and_long_contexts_fall_back_with_a_reason() -> None:
    world = World(requests=2, pages=40)
    world.graphs.capture(world.table)
    assert world.graphs.obstacle([1, 1, 1], greedy=True) == "draft_graph_size"
    assert world.graphs.run([1, 1, 1], world.table, torch.arange(1, 4), greedy=True) is None
    assert world.graphs.run([30, 30], world.table, torch.arange(1, 3), greedy=True) is None
    assert world.fallbacks == {"draft_graph_size": 1, "draft_graph_pages": 1}


def test_tiers() -> None:
    assert request_tiers(48) == [1, 2, 4, 8, 16, 24, 32, 40, 48]
    assert request_tiers(1) == [1]
    assert token_tiers(2, 5) == [1, 2, 4, 8, 10]
    for most in (1, 7, 48, 300):
        for tiers in (request_tiers(most), token_tiers(most, 8)):
            assert tiers == sorted(set(tiers))
            for size in range(1, tiers[-1] + 1):
                tier = tier_above(tiers, size)
                assert tier is not None
                assert size <= tier < 2 * size + 1
    assert tier_above([1, 2], 3) is None


def test_calibration_is_updated_in_place() -> None:
    world = World()
    places = [buffer.data_ptr() for buffer in world.inputs.buffers()]
    world.inputs.calibrate(np.full((3, world.gamma), 2.0, np.float32), np.ones((3, world.gamma), np.float32))
    world.inputs.pad(0, MOST)
    assert [buffer.data_ptr() for buffer in world.inputs.buffers()] == places
    assert bool((world.inputs.inverse_temperatures == 2.0).all())


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("head", "shortlist"), [("vanilla", 9), ("gated", None)])
def test_a_replay_equals_the_same_operations_one_by_one(greedy: bool, head: str, shortlist: int | None) -> None:
    world, twin = World(shortlist, head=head), World(shortlist, head=head)
    world.graphs.capture(world.table)
    for number, count in enumerate((3, 4, 1, 2), start=1):
        step = world.step(number, count, greedy=greedy, commits=number)
        twin.inputs.step.copy_(world.inputs.step)
        got, want = world.replayed(step, greedy=greedy), twin.eagerly(step, greedy=greedy)
        check_equal(got, (want.block, want.survival, want.lens), greedy=greedy)
