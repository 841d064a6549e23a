"""A drafter, its pool and its graphs, beside the same draft without them; on a CPU or on CUDA."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dspark_sglang.allocate import admit, survival_of
from dspark_sglang.attention.flashinfer import Capacity, Heads, PagedAttention, PageTable
from dspark_sglang.attention.layout import build_plan
from dspark_sglang.attention.paged import build_paged
from dspark_sglang.draft_graph import Drafted, DraftGraphs, draft_step
from dspark_sglang.draft_inputs import DraftInputs
from dspark_sglang.draft_kv import DraftKvPool
from sgl_dspark.sampling.block import DraftBlock, sample_block
from sgl_dspark.sampling.counter import DRAFT, counter_uniforms
from tests.support.drafts import tiny_drafter
from tests.support.fake_graph import FakeGraph
from tests.support.paged_reference import ReferencePagedPrefill

CPU = torch.device("cpu")
MOST, WIDTH, SEED = 4, 40, 77


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
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    head_dim: int = 6
    make_wrapper: Any = ReferencePagedPrefill
    head: str = "gated"
    fallbacks: Counter[str] = field(default_factory=Counter)
    graphs_made: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drafter = tiny_drafter(self.head, head_dim=self.head_dim, dtype=self.dtype).to(self.device)
        self.drafter.fuse_for_serving()
        config = self.drafter.config
        self.gamma = config.gamma
        generator = torch.Generator().manual_seed(1)
        pages = torch.randperm(MOST * WIDTH // 4, generator=generator) + 1
        slots = (pages.unsqueeze(1) * 4 + torch.arange(4)).view(MOST, WIDTH)
        self.table = torch.cat([torch.zeros(1, WIDTH, dtype=torch.int64), slots]).to(torch.int32).to(self.device)
        self.pool = DraftKvPool(config, MOST * WIDTH + 4, self.dtype, self.device)
        self.pool.buffer.copy_(torch.randn(self.pool.buffer.shape, generator=generator))
        self.inputs = DraftInputs.make(config, self.requests, self.dtype, self.device, SEED)
        heads = Heads(
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            self.dtype,
            config.head_dim**-0.5,
            self.page_size,
        )

        workspace = torch.empty(128 << 20 if self.device.type == "cuda" else 0, dtype=torch.uint8, device=self.device)

        def attention(capacity: Capacity) -> PagedAttention:
            return PagedAttention(heads, self.device, workspace, capacity, self.make_wrapper)

        def graph() -> Any:
            self.graphs_made.append(self.make_graph())
            return self.graphs_made[-1]

        self.graphs = DraftGraphs(
            self.drafter,
            self.pool,
            self.inputs,
            PageTable(self.pages, self.device),
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
            slots = self.table[rows[0], :commits].long()
            committed = (features.to(self.device, self.dtype), torch.arange(commits, device=self.device), slots)
        return Requests(
            torch.randint(self.drafter.vocab_size, (count,), generator=generator).to(self.device),
            lengths.tolist(),
            rows.to(self.device),
            (torch.zeros(count) if greedy else temperatures).to(self.device),
            torch.randint(3, (count,), generator=generator),
            torch.randint(self.gamma + 1, (count,), generator=generator),
            torch.zeros(count, dtype=torch.int64),
            int(torch.randint(count * self.gamma + 1, (), generator=generator)),
            committed,
        )

    def slots_of(self, step: Requests) -> Tensor:
        columns = (torch.tensor(step.lengths).unsqueeze(1) + torch.arange(self.gamma)).to(self.device)
        return self.table[step.rows.unsqueeze(1), columns].long()

    @torch.no_grad()
    def replayed(self, step: Requests, *, greedy: bool = False) -> Drafted | None:
        self._load(step)
        return self.graphs.run(step.lengths, self.table, step.rows, greedy=greedy)

    @torch.no_grad()
    def eagerly(self, step: Requests, *, greedy: bool = False) -> Drafted:
        """Run the captured operations one by one, from the same buffers."""
        self._load(step)
        gamma, count = self.gamma, len(step.lengths)
        plan = build_paged([gamma] * count, [n + gamma for n in step.lengths], page_size=self.page_size, causal=False)
        attention = self.graphs._make_attention(None)  # type: ignore[arg-type]
        attention.plan(plan, self.table, step.rows)
        found = draft_step(
            self.drafter, self.pool, attention, self.inputs.tier(count), greedy=greedy, shortlist=self.shortlist
        )
        self.inputs.committed_rows = 0
        return found

    def _load(self, step: Requests) -> None:
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
        lengths = torch.tensor(step.lengths, device=self.device)
        hidden = self.drafter.block_hidden(step.anchors, lengths, attend)
        seed, number_there = torch.tensor([SEED, number], device=self.device)
        uniforms = counter_uniforms(seed, number_there, *hidden.shape[:2], DRAFT)
        block = sample_block(
            self.drafter,
            hidden,
            step.anchors,
            step.temperatures,
            shortlist=self.shortlist,
            uniforms=uniforms,
            greedy="all" if greedy else "some",
        )
        own = (scales[step.kinds].to(self.device), biases[step.kinds].to(self.device))
        survival = survival_of(block.confidence_logits, *own)
        room, least = step.room.to(self.device), step.least.to(self.device)
        survival = torch.where(torch.arange(self.gamma, device=self.device) < room.unsqueeze(1), survival, 0.0)
        return block, survival, torch.maximum(admit(survival, step.budget), least)


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
