"""FlashInfer executing our plans against attention in fp64: dtypes, head dims, groups, page sizes, changed plans."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dspark_sglang.attention.flashinfer import Capacity, Heads, PagedAttention, PageTable, workspace_bytes
from dspark_sglang.attention.paged import build_paged
from dspark_sglang.graphs import CudaGraph
from tests.support.naive_attention import naive_attention

pytestmark = pytest.mark.gpu
CUDA, SLOTS, MOST_ROWS = torch.device("cuda"), 6, 48
TOLERANCE = 2e-2


@pytest.fixture(autouse=True)
def _flashinfer() -> None:
    pytest.importorskip("flashinfer")


class Case:
    """Requests over whole pages in random order; the page of nobody holds NaN."""

    def __init__(self, heads: Heads, q_lens: list[int], prefix: list[int], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.q_lens, self.kv_lens = q_lens, [p + q for p, q in zip(prefix, q_lens, strict=True)]
        page = heads.page_size
        counts = [-(-n // page) for n in self.kv_lens]
        pages = (torch.randperm(sum(counts), generator=generator) + 1).split(counts)
        self.table = torch.zeros(len(q_lens), max(counts) * page, dtype=torch.int32)
        self.slots: list[list[int]] = []
        for r, own in enumerate(pages):
            slots = (own.unsqueeze(1) * page + torch.arange(page)).flatten()
            self.table[r, : len(slots)] = slots.to(torch.int32)
            self.slots.append(slots[: self.kv_lens[r]].tolist())
        total = (sum(counts) + 1) * page
        shape = (2, total, heads.keys, heads.dim)
        self.keys, self.values = torch.randn(shape, generator=generator).to(heads.dtype)
        self.keys[:page] = self.values[:page] = torch.nan
        # A page's tail is loaded with it, and must not show: FlashInfer masks it by length, not by weight.
        queries = torch.randn(sum(q_lens), heads.queries, heads.dim, generator=generator)
        self.queries = queries.to(heads.dtype)

    def check(self, heads: Heads, attention: PagedAttention, got: Tensor, *, causal: bool) -> None:
        want = naive_attention(
            self.slots, self.q_lens, self.queries, self.keys, self.values, heads.scale, causal=causal
        )
        error = (got[: len(want)].cpu().double() - want).norm() / want.norm()
        assert float(error) < TOLERANCE


def attention_of(heads: Heads, capacity: Capacity | None = None) -> PagedAttention:
    workspace = torch.empty(workspace_bytes(heads, SLOTS, MOST_ROWS), dtype=torch.uint8, device=CUDA)
    return PagedAttention(heads, CUDA, workspace, capacity)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("page_size", [1, 16])
# By name, so that what is prebuilt can run first.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(("dim", "queries", "keys"), [(64, 9, 3), (128, 8, 2), (128, 4, 4)])
def test_plans_of_changing_lengths(
    dim: int, queries: int, keys: int, dtype: torch.dtype, page_size: int, causal: bool
) -> None:
    heads = Heads(queries, keys, dim, dtype, dim**-0.5, page_size)
    attention = attention_of(heads)
    for seed, (q_lens, prefix) in enumerate(
        [([8, 8, 8], [100, 3, 700]), ([1, 5, 8, 2], [40, 0, 300, 17]), ([130, 1], [0, 900])]
    ):
        case = Case(heads, q_lens, prefix, seed)
        plan = build_paged(q_lens, case.kv_lens, page_size=page_size, causal=causal)
        attention.plan(plan, case.table.cuda(), torch.arange(len(q_lens), device=CUDA))
        got = attention.run(case.queries.cuda(), case.keys.cuda(), case.values.cuda())
        case.check(heads, attention, got, causal=causal)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("causal", [True, False])
def test_replays_follow_plans_made_after_capture(page_size: int, causal: bool) -> None:
    """One graph; between replays lengths, number of requests and pages change, and padded rows touch nothing."""
    heads = Heads(8, 2, 128, torch.bfloat16, 128**-0.5, page_size)
    attention = attention_of(heads, Capacity(SLOTS, MOST_ROWS, PageTable(8192, CUDA)))
    pool = torch.zeros(2, 8192, heads.keys, heads.dim, dtype=heads.dtype, device=CUDA)
    queries = torch.zeros(MOST_ROWS, heads.queries, heads.dim, dtype=heads.dtype, device=CUDA)
    full = build_paged([8] * SLOTS, [8] * SLOTS, page_size=page_size, causal=causal)
    attention.plan(full, torch.zeros(1, 64, dtype=torch.int32, device=CUDA), torch.zeros(SLOTS, device=CUDA).long())
    out: list[Tensor] = []
    graph = CudaGraph()
    graph.capture(lambda: out.append(attention.run(queries, pool[0], pool[1])))
    for seed, (q_lens, prefix) in enumerate(
        [([8, 3], [1000, 5]), ([1, 8, 8, 2], [40, 0, 300, 17]), ([8] * 6, [90] * 6)]
    ):
        case = Case(heads, q_lens, prefix, seed)
        pool[:, : len(case.keys)] = torch.stack([case.keys, case.values]).cuda()
        queries[: len(case.queries)] = case.queries.cuda()
        plan = build_paged(q_lens, case.kv_lens, page_size=page_size, causal=causal, slots=SLOTS)
        attention.plan(plan, case.table.cuda(), torch.arange(len(q_lens), device=CUDA))
        graph.replay()
        case.check(heads, attention, out[-1], causal=causal)


def test_other_rows_than_planned_are_refused() -> None:
    heads = Heads(8, 2, 128, torch.bfloat16, 128**-0.5)
    attention, case = attention_of(heads), Case(heads, [2, 3], [5, 6], 0)
    plan = build_paged([2, 3], case.kv_lens, page_size=1, causal=True)
    attention.plan(plan, case.table.cuda(), torch.arange(2, device=CUDA))
    wrapper, paged = attention._wrapper, [pool.cuda().unsqueeze(1) for pool in (case.keys, case.values)]
    for rows in (4, 6):
        queries = torch.zeros(rows, heads.queries, heads.dim, dtype=heads.dtype, device=CUDA)
        with pytest.raises(ValueError, match="query rows"):
            attention.run(queries, case.keys.cuda(), case.values.cuda())
        with pytest.raises(ValueError, match=r"does not match qo_indptr"):
            wrapper.run(queries, tuple(paged))
