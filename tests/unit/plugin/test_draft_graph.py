"""Drafting by replay: what a graph reads and writes, that a replay equals the eager draft, and every way out of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark_sglang.allocate import admit, survival_of
from dspark_sglang.attention.flashinfer import Capacity, Heads, PagedAttention, PageTable
from dspark_sglang.draft_inputs import DraftInputs
from dspark_sglang.graphs import request_tiers, tier_above, token_tiers
from sgl_dspark.sampling.block import DraftBlock, sample_block
from sgl_dspark.sampling.counter import DRAFT, counter_uniforms
from tests.support.drafts import tiny_drafter
from tests.support.fake_graph import FakeGraph, place
from tests.support.paged_reference import ReferencePagedPrefill

pytest.importorskip("sglang")
from dspark_sglang.attention.layout import build_plan
from dspark_sglang.draft_graph import Drafted, DraftGraphs
from dspark_sglang.draft_kv import DraftKvPool

CPU = torch.device("cpu")
MOST, WIDTH, SEED = 4, 40, 77


@pytest.fixture(autouse=True)
def _no_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator."""
    monkeypatch.setattr("sgl_dspark.model.packed.can_pack", lambda weight: False)


@dataclass
class Requests:
    """Requests of one step, and what the step before has committed of them."""

    anchors: Tensor
    lengths: list[int]
    rows: Tensor
    temperatures: Tensor
    kinds: Tensor
    room: Tensor
    least: Tensor
    budget: int
    committed: tuple[Tensor, Tensor, Tensor] | None = None


@dataclass
class World:
    """A drafter, its pool, and graphs that run on the CPU."""

    shortlist: int | None = 9
    page_size: int = 1
    requests: int = MOST
    pages: int = MOST * WIDTH
    make_graph: Any = FakeGraph
    fallbacks: Counter[str] = field(default_factory=Counter)
    graphs_made: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drafter = tiny_drafter("gated")
        self.drafter.fuse_for_serving()
        config = self.drafter.config
        self.gamma = config.gamma
        generator = torch.Generator().manual_seed(1)
        pages = torch.randperm(MOST * WIDTH // 4, generator=generator) + 1
        slots = (pages.unsqueeze(1) * 4 + torch.arange(4)).view(MOST, WIDTH)
        self.table = torch.cat([torch.zeros(1, WIDTH, dtype=torch.int64), slots]).to(torch.int32)
        self.pool = DraftKvPool(config, MOST * WIDTH + 4, torch.float32, CPU)
        self.pool.buffer.copy_(torch.randn(self.pool.buffer.shape, generator=generator))
        self.inputs = DraftInputs.make(config, self.requests, torch.float32, CPU, SEED)
        heads = Heads(
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            torch.float32,
            config.head_dim**-0.5,
            self.page_size,
        )

        def attention(capacity: Capacity) -> PagedAttention:
            return PagedAttention(heads, CPU, torch.empty(0), capacity, ReferencePagedPrefill)

        def graph() -> Any:
            self.graphs_made.append(self.make_graph())
            return self.graphs_made[-1]

        self.graphs = DraftGraphs(
            self.drafter,
            self.pool,
            self.inputs,
            PageTable(self.pages, CPU),
            make_attention=attention,
            make_graph=graph,
            count=lambda name: self.fallbacks.update([name]),
            shortlist=self.shortlist,
            page_size=self.page_size,
        )

    def step(self, seed: int, count: int, *, greedy: bool = False, commits: int = 0) -> Requests:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(MOST, generator=generator)[:count] + 1
        lengths = torch.randint(1, WIDTH - self.gamma - 1, (count,), generator=generator)
        temperatures = torch.rand(count, generator=generator) + 0.3
        temperatures[0] = 0.0
        committed = None
        if commits:
            features = torch.randn(commits, self.drafter.config.num_features, generator=generator)
            slots = self.table[rows[0], torch.arange(commits)].long()
            committed = (features, torch.arange(commits), slots)
        return Requests(
            torch.randint(self.drafter.vocab_size, (count,), generator=generator),
            lengths.tolist(),
            rows,
            torch.zeros(count) if greedy else temperatures,
            torch.randint(3, (count,), generator=generator),
            torch.randint(self.gamma + 1, (count,), generator=generator),
            torch.zeros(count, dtype=torch.int64),
            int(torch.randint(count * self.gamma + 1, (), generator=generator)),
            committed,
        )

    def slots_of(self, step: Requests) -> Tensor:
        columns = torch.tensor(step.lengths).unsqueeze(1) + torch.arange(self.gamma)
        return self.table[step.rows.unsqueeze(1), columns].long()

    @torch.no_grad()
    def replayed(self, step: Requests, *, greedy: bool = False) -> Drafted | None:
        if step.committed is not None:
            self.inputs.commit(*step.committed)
        self.inputs.load(
            anchors=step.anchors,
            prefix_lens=torch.tensor(step.lengths),
            slots=self.slots_of(step),
            temperatures=step.temperatures,
            kinds=step.kinds,
            room=step.room,
            least=step.least,
            budget=step.budget,
        )
        return self.graphs.run(step.lengths, self.table, step.rows, greedy=greedy)

    @torch.no_grad()
    def eager(
        self, step: Requests, number: int, scales: Tensor, biases: Tensor, *, greedy: bool = False
    ) -> tuple[DraftBlock, Tensor, Tensor]:
        """Draft as the worker does without graphs, with the uniforms that belong to step ``number``."""
        if step.committed is not None:
            self.pool.write_context(self.drafter, *step.committed)
        kv_lens = [length + self.gamma for length in step.lengths]
        plan = build_plan(self.table, step.rows, [self.gamma] * len(kv_lens), kv_lens, causal=False)
        attend = self.pool.attend(plan, self.slots_of(step).view(-1))
        hidden = self.drafter.block_hidden(step.anchors, torch.tensor(step.lengths), attend)
        uniforms = counter_uniforms(torch.tensor(SEED), torch.tensor(number), *hidden.shape[:2], DRAFT)
        block = sample_block(
            self.drafter,
            hidden,
            step.anchors,
            step.temperatures,
            shortlist=self.shortlist,
            uniforms=uniforms,
            greedy="all" if greedy else "some",
        )
        survival = survival_of(block.confidence_logits, scales[step.kinds], biases[step.kinds])
        survival = torch.where(torch.arange(self.gamma) < step.room.unsqueeze(1), survival, 0.0)
        return block, survival, torch.maximum(admit(survival, step.budget), step.least)


def check_equal(got: Drafted | None, want: tuple[DraftBlock, Tensor, Tensor], *, greedy: bool) -> None:
    block, survival, lens = want
    assert got is not None
    assert torch.equal(got.block.tokens, block.tokens)
    torch.testing.assert_close(got.block.confidence_logits, block.confidence_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.survival, survival, rtol=1e-4, atol=1e-5)
    assert torch.equal(got.lens, lens)
    if not greedy:
        for name in ("probs", "token_probs"):
            torch.testing.assert_close(getattr(got.block, name), getattr(block, name), rtol=1e-4, atol=1e-5)


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


def test_little_memory_falls_back_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr("dspark_sglang.graphs.enough_memory", lambda device: False)
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
