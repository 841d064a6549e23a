"""Paged plans against brute force: lengths, page sizes, tiers, padding, and verification by device-side lengths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark_sglang.attention.flashinfer import Capacity, Heads, PagedAttention, PageTable
from dspark_sglang.attention.paged import build_paged, fill_page_table
from dspark_sglang.attention.window import FlatTokens, PlannedRows, planned_slots
from tests.support.naive_attention import naive_attention
from tests.support.paged_reference import ReferencePagedPrefill

CPU = torch.device("cpu")
DIM, SCALE = 4, 0.6
REQUESTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 25)), min_size=1, max_size=6)
PAGE_SIZES = st.sampled_from([1, 2, 4, 16])
HEADS = st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2)])


class Pool:
    """A slot table of whole pages in random order; whatever nobody owns holds NaN, except the reserved page."""

    def __init__(self, capacities: list[int], page_size: int, kv_heads: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-tokens // page_size) for tokens in capacities]
        pages = torch.randperm(sum(counts), generator=generator) + 1
        width = max(counts) * page_size + 3
        self.table = torch.full((len(counts) + 3, width), 10**6, dtype=torch.int32)
        self.rows = torch.randperm(len(counts) + 3, generator=generator)[: len(counts)]
        total = (sum(counts) + 1) * page_size
        self.keys, self.values = torch.randn(2, total, kv_heads, DIM, generator=generator)
        self.slots: list[list[int]] = []
        for r, own in zip(self.rows.tolist(), pages.split(counts), strict=True):
            slots = (own.unsqueeze(1) * page_size + torch.arange(page_size)).flatten()
            self.table[r, : len(slots)] = slots.to(torch.int32)
            self.slots.append(slots.tolist())

    def poison(self, kv_lens: list[int]) -> None:
        owned = {s for own, length in zip(self.slots, kv_lens, strict=True) for s in own[:length]}
        stale = [s for s in range(len(self.keys)) if s not in owned]
        self.keys[stale], self.values[stale] = torch.nan, torch.nan


@given(requests=REQUESTS, page_size=PAGE_SIZES, spare=st.integers(0, 4), padding_rows=st.integers(0, 3))
def test_boundaries_equal_those_counted_one_by_one(
    requests: list[tuple[int, int]], page_size: int, spare: int, padding_rows: int
) -> None:
    q_lens, kv_lens = [q for q, _ in requests], [q + prefix for q, prefix in requests]
    slots = len(requests) + spare
    plan = build_paged(q_lens, kv_lens, page_size=page_size, causal=True, slots=slots, padding_rows=padding_rows)
    pool = Pool(kv_lens, page_size, 1, seed=1)
    rows, pages, last, table = [0], [0], [], []
    for slot in range(slots):
        real = slot < len(requests)
        q_len, tokens = (q_lens[slot], kv_lens[slot]) if real else (padding_rows, 1 if padding_rows else 0)
        rows.append(rows[-1] + q_len)
        own = [0] if not real and tokens else []
        if real:
            for position in range(0, tokens, page_size):
                own.append(pool.slots[slot][position] // page_size)
        pages.append(pages[-1] + len(own))
        table += own
        last.append(tokens - page_size * (len(own) - 1) if own else 1)
    assert plan.qo_indptr.tolist() == rows
    assert plan.kv_indptr.tolist() == pages
    assert plan.last_page_len.tolist() == last
    out = torch.full((plan.pages + 3,), -1, dtype=torch.int32)
    found = fill_page_table(plan, plan.kv_indptr, pool.table, pool.rows, torch.arange(plan.pages + 9), out)
    assert found.tolist() == table
    assert out[plan.pages :].tolist() == [-1] * 3


@settings(max_examples=80, deadline=None)
@given(
    requests=REQUESTS,
    page_size=PAGE_SIZES,
    heads=HEADS,
    causal=st.booleans(),
    persistent=st.booleans(),
    spare=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_attention_through_the_plan_equals_the_naive_one(
    requests: list[tuple[int, int]],
    page_size: int,
    heads: tuple[int, int],
    causal: bool,
    persistent: bool,
    spare: int,
    seed: int,
) -> None:
    q_lens, kv_lens = [q for q, _ in requests], [q + prefix for q, prefix in requests]
    pool = Pool(kv_lens, page_size, heads[1], seed)
    pool.poison(kv_lens)
    slots = len(requests) + spare
    capacity = Capacity(slots, slots * 6, PageTable(slots * 31, CPU)) if persistent else None
    attention = PagedAttention(
        Heads(*heads, DIM, torch.float32, SCALE, page_size), CPU, torch.empty(0), capacity, ReferencePagedPrefill
    )
    if persistent:
        full = build_paged([6] * slots, [6] * slots, page_size=page_size, causal=causal)
        attention.plan(full, torch.zeros(1, 32, dtype=torch.int32), torch.zeros(slots, dtype=torch.int64))
    plan = build_paged(q_lens, kv_lens, page_size=page_size, causal=causal, slots=slots)
    attention.plan(plan, pool.table, pool.rows)
    queries = torch.randn(plan.rows, heads[0], DIM)
    got = attention.run(queries, pool.keys, pool.values)
    own = [slots_of[:length] for slots_of, length in zip(pool.slots, kv_lens, strict=True)]
    want = naive_attention(own, q_lens, queries, pool.keys, pool.values, SCALE, causal=causal)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 20)), min_size=1, max_size=6),
    page_size=PAGE_SIZES,
    spare=st.integers(0, 3),
    tail=st.integers(0, 5),
    seed=st.integers(0, 10**6),
)
def test_verification_whose_lengths_the_host_does_not_know(
    requests: list[tuple[int, int, int]], page_size: int, spare: int, tail: int, seed: int
) -> None:
    """Rows are planned for ``len + slack``; each layer writes and attends as the backend does. Nothing is NaN."""
    width, heads = 9, (4, 2)
    lens, bounds = [v for v, _, _ in requests], [v + slack for v, slack, _ in requests]
    prefix = [p for _, _, p in requests]
    kv_lens = [p + bound for p, bound in zip(prefix, bounds, strict=True)]
    pool = Pool([p + width for p in prefix], page_size, heads[1], seed)
    pool.poison(prefix)
    slots, real = len(requests) + spare, len(requests)
    verify_lens = torch.tensor(lens + [0] * spare)
    tier = sum(lens) + tail
    plan = build_paged(bounds, kv_lens, page_size=page_size, causal=True, slots=slots)
    owners, depths = _row_index(bounds, plan.rows + 2)
    tokens = FlatTokens.of(verify_lens, torch.arange(tier))
    rows = PlannedRows.of(tokens, verify_lens, owners, depths, plan.qo_indptr[:-1].long())
    window_slots = torch.zeros(slots, width, dtype=torch.int64)
    for r in range(real):
        window_slots[r] = torch.tensor(pool.slots[r][prefix[r] : prefix[r] + width])
    counting = torch.arange(len(owners))
    written = planned_slots(window_slots, owners, depths, torch.tensor(plan.rows), counting)

    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(tier, heads[0], DIM, generator=generator)
    keys, values = torch.randn(2, tier, heads[1], DIM, generator=generator)
    pool.keys[written], pool.values[written] = keys[rows.spread], values[rows.spread]
    attention = PagedAttention(
        Heads(*heads, DIM, torch.float32, SCALE, page_size), CPU, torch.empty(0), None, ReferencePagedPrefill
    )
    attention.plan(plan, pool.table, pool.rows)
    got = attention.run(queries[rows.spread][: plan.rows], pool.keys, pool.values)[rows.pack][: sum(lens)]

    own = [pool.slots[r][: prefix[r] + lens[r]] for r in range(real)]
    want = naive_attention(own, lens, queries[: sum(lens)], pool.keys, pool.values, SCALE, causal=True)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    # What is committed was not touched, and nothing was written outside the requests' windows.
    allowed = {0} | {s for r in range(real) for s in pool.slots[r][prefix[r] : prefix[r] + bounds[r]]}
    assert set(written.tolist()) <= allowed


def _row_index(bounds: list[int], length: int) -> tuple[Tensor, Tensor]:
    pairs = [(r, i) for r, bound in enumerate(bounds) for i in range(bound)]
    pairs += [(0, 0)] * (length - len(pairs))
    return torch.tensor([r for r, _ in pairs]), torch.tensor([i for _, i in pairs])


@given(lens=st.lists(st.integers(0, 5), min_size=1, max_size=8), tail=st.integers(0, 6))
def test_flat_tokens_equal_those_listed_one_by_one(lens: list[int], tail: int) -> None:
    tier = sum(lens) + tail
    tokens = FlatTokens.of(torch.tensor(lens), torch.arange(tier))
    want = [(r, i) for r, length in enumerate(lens) for i in range(length)]
    assert list(zip(tokens.owners.tolist(), tokens.depths.tolist(), strict=True)) == want + [(0, 0)] * tail
    assert tokens.real.tolist() == [True] * sum(lens) + [False] * tail
    window = torch.arange(len(lens) * 6).view(len(lens), 6)
    assert tokens.take(window, -7).tolist() == [r * 6 + i for r, i in want] + [-7] * tail


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "slots", "message"),
    [
        ([1, 3], [1, 2], None, "request 1: 3 query rows do not fit in 2 KV tokens"),
        ([1, -1], [1, 2], None, "request 1: -1 query rows"),
        ([1, 1], [1, 1], 1, "2 requests do not fit in 1 request slots"),
    ],
)
def test_what_does_not_fit_is_refused(q_lens: list[int], kv_lens: list[int], slots: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_paged(q_lens, kv_lens, page_size=1, causal=True, slots=slots)
