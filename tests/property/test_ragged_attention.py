"""The ragged plan and its two CPU executors against attention written as loops over requests, rows and heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark_sglang.attention import layout, tiles
from dspark_sglang.attention.layout import build_plan
from sgl_dspark.errors import ConfigError
from tests.support.naive_attention import naive_attention

pytest.importorskip("sglang")
from dspark_sglang.attention import cpu, kernel
from dspark_sglang.attention.cpu import run_plan
from dspark_sglang.switches import ATTENTION_KERNEL

# Head dims that only the tiles compute, and that the kernel does: in one part, in two of one vector, in two of two.
TILED, KERNEL = 4, (16, 48, 64)
SCALE = 0.7
KV_DTYPES = [torch.float32, torch.bfloat16]
DECODE = st.tuples(st.just(1), st.integers(0, 60))
VERIFY = st.tuples(st.integers(1, 8), st.integers(0, 60))
PREFILL = st.tuples(st.integers(1, 40), st.integers(0, 30))
ABSENT = st.tuples(st.just(0), st.integers(0, 20))
REQUESTS = st.lists(st.one_of(DECODE, VERIFY, PREFILL, ABSENT), min_size=1, max_size=7)


@dataclass
class Case:
    """A slot table whose unused columns hold stale slots of other requests, and one layer's tensors."""

    table: Tensor
    request_rows: Tensor
    q_lens: list[int]
    kv_lens: list[int]
    queries: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def random(cls, requests: list[tuple[int, int]], num_kv: int, group: int, seed: int, dim: int = TILED) -> Case:
        generator = torch.Generator().manual_seed(seed)
        q_lens, kv_lens = [q for q, _ in requests], [q + prefix for q, prefix in requests]
        width, num_slots = max(kv_lens) + 5, sum(kv_lens) + 4
        pool_rows = len(requests) + 2
        table = torch.randint(num_slots, (pool_rows, width), generator=generator, dtype=torch.int32)
        rows = torch.randperm(pool_rows, generator=generator)[: len(requests)]
        # Slot 0 is the padding slot, which no request owns.
        own = (torch.randperm(num_slots - 1, generator=generator) + 1).to(torch.int32)
        for r, part in zip(rows.tolist(), own[: sum(kv_lens)].split(kv_lens), strict=True):
            table[r, : len(part)] = part
        keys, values = torch.randn(2, num_slots, num_kv, dim, generator=generator)
        # Slots that belong to nobody here hold the worst that an overflow in another request can leave.
        keys[own[sum(kv_lens) :].long()] = torch.nan
        values[own[sum(kv_lens) :].long()] = torch.inf
        queries = torch.randn(sum(q_lens), num_kv * group, dim, generator=generator)
        return cls(table, rows, q_lens, kv_lens, queries, keys, values)

    def slots_of(self) -> list[list[int]]:
        return [self.table[r, :kv].tolist() for r, kv in zip(self.request_rows.tolist(), self.kv_lens, strict=True)]

    def check(self, *, causal: bool) -> layout.RaggedPlan:
        plan = build_plan(self.table, self.request_rows, self.q_lens, self.kv_lens, causal=causal)
        got = run_plan(plan, self.queries, self.keys, self.values, SCALE)
        want = naive_attention(self.slots_of(), self.q_lens, self.queries, self.keys, self.values, SCALE, causal=causal)
        assert got.dtype == self.queries.dtype
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=2e-5)
        assert plan.num_rows == len(self.queries)
        return plan


@settings(max_examples=120, deadline=None)
@given(
    requests=REQUESTS,
    heads=st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (3, 3)]),
    causal=st.booleans(),
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([TILED, *KERNEL]),
)
def test_mixed_requests(
    requests: list[tuple[int, int]], heads: tuple[int, int], causal: bool, seed: int, dim: int
) -> None:
    case = Case.random(requests, *heads, seed=seed, dim=dim)
    assert kernel.supported(case.queries, case.keys, case.values) == (dim in KERNEL)
    case.check(causal=causal)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, causal=st.booleans(), seed=st.integers(0, 10**6), limit=st.integers(1, 6))
def test_prefills_that_are_cut_into_pieces(
    requests: list[tuple[int, int]], causal: bool, seed: int, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "MAX_TILE_ROWS", limit)
        plan = Case.random(requests, 2, 2, seed).check(causal=causal)
    assert all(tile.num_rows <= limit for tile in plan.tiles)


@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS, causal=st.booleans(), seed=st.integers(0, 10**6))
def test_tiles_whose_kv_is_too_much_to_gather_at_once(requests: list[tuple[int, int]], causal: bool, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "PADDING_FREE_AREA", 0)
        case = Case.random(requests, 2, 2, seed)
        plan = case.check(causal=causal)
        together = run_plan(plan, case.queries, case.keys, case.values, SCALE)
        patch.setattr(cpu, "MAX_GATHER", 0)
        one_by_one = run_plan(plan, case.queries, case.keys, case.values, SCALE)
    assert torch.equal(one_by_one, together)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, causal=st.booleans(), seed=st.integers(0, 10**6))
def test_tiles_of_requests_that_are_never_padded(requests: list[tuple[int, int]], causal: bool, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "PADDING_FREE_AREA", 0)
        patch.setattr(tiles, "PADDING_FACTOR", 1.0)
        plan = Case.random(requests, 2, 2, seed).check(causal=causal)
    assert all(tile.keep is None for tile in plan.tiles)


@settings(max_examples=40, deadline=None)
@given(
    lens=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 60)), min_size=1, max_size=6),
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([TILED, *KERNEL]),
)
def test_rows_do_not_depend_on_the_company_they_keep(lens: list[tuple[int, int]], seed: int, dim: int) -> None:
    case = Case.random(lens, 2, 2, seed, dim)
    together = run_plan(
        build_plan(case.table, case.request_rows, case.q_lens, case.kv_lens, causal=True),
        case.queries,
        case.keys,
        case.values,
        SCALE,
    )
    row = 0
    for i, (q_len, _) in enumerate(lens):
        alone = build_plan(case.table, case.request_rows[i : i + 1], [q_len], [case.kv_lens[i]], causal=True)
        own = slice(row, row + q_len)
        got = run_plan(alone, case.queries[own], case.keys, case.values, SCALE)
        close = {"rtol": 0.0, "atol": 0.0} if dim in KERNEL else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(got, together[own], **close)
        row += q_len


@settings(max_examples=40, deadline=None)
@given(q_len=st.integers(1, 9), prefix=st.integers(0, 40), seed=st.integers(0, 10**6), dtype=st.sampled_from(KV_DTYPES))
def test_the_kernel_verifies_to_the_last_bit_as_it_decodes(
    q_len: int, prefix: int, seed: int, dtype: torch.dtype
) -> None:
    case = Case.random([(q_len, prefix)], 2, 3, seed, 32)
    tensors = [x.to(dtype) for x in (case.queries, case.keys, case.values)]
    verified = run_plan(build_plan(case.table, case.request_rows, [q_len], case.kv_lens, causal=True), *tensors, SCALE)
    for j in range(q_len):
        one = build_plan(case.table, case.request_rows, [1], [prefix + j + 1], causal=True)
        decoded = run_plan(one, tensors[0][j : j + 1], *tensors[1:], SCALE)
        assert torch.equal(decoded, verified[j : j + 1])


def test_the_kernel_gives_the_same_with_several_threads() -> None:
    case = Case.random([(5, 40), (1, 70), (0, 3), (33, 9)], 3, 2, seed=8, dim=32)
    plan = build_plan(case.table, case.request_rows, case.q_lens, case.kv_lens, causal=True)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(run_plan(plan, case.queries, case.keys, case.values, SCALE))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("which", ["queries", "keys", "values"])
def test_the_kernel_shows_a_number_that_is_none_and_only_where_it_is_seen(which: str) -> None:
    case = Case.random([(4, 20), (4, 20)], 1, 2, seed=9, dim=16)
    if which == "queries":
        case.queries[2] = torch.nan
    else:
        slot = case.slots_of()[0][10]
        getattr(case, which)[slot] = torch.nan
    plan = build_plan(case.table, case.request_rows, case.q_lens, case.kv_lens, causal=True)
    broken = run_plan(plan, case.queries, case.keys, case.values, SCALE).isnan().flatten(1).any(1).tolist()
    assert broken == [which != "queries" or row == 2 for row in range(4)] + [False] * 4


def test_scores_far_apart_underflow_to_nothing() -> None:
    case = Case.random([(8, 24)], 1, 1, seed=10, dim=16)
    case.keys.mul_(200)
    slots = case.slots_of()[0]
    scores = case.queries[:, 0] @ case.keys[slots, 0].T * SCALE
    assert (scores.amax(1) - scores.amin(1) > 126 * math.log(2)).all(), "no score is far enough from the highest"
    case.check(causal=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda q, k, v: (q.half(), k.half(), v.half()), "dtype"),
        (lambda q, k, v: (q, k.bfloat16(), v.bfloat16()), "KV of another type than the queries"),
        (lambda q, k, v: (q[..., :8], k[..., :8].contiguous(), v[..., :8].contiguous()), "head dim"),
        (lambda q, k, v: (q, k[::2], v[::2]), "a pool with gaps"),
    ],
)
def test_what_the_kernel_cannot_compute_is_left_to_the_tiles(
    change: Callable[..., tuple[Tensor, ...]], why: str
) -> None:
    case = Case.random([(2, 5)], 1, 2, seed=11, dim=16)
    tensors = case.queries, case.keys, case.values
    assert kernel.supported(*tensors)
    assert not kernel.supported(*change(*tensors)), why


def test_the_kernel_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.random([(2, 5)], 1, 2, seed=11, dim=16)
    try:
        for text, expected in (("0", False), ("1", True), ("", True)):
            monkeypatch.setenv(ATTENTION_KERNEL, text)
            kernel.wanted.cache_clear()
            assert kernel.supported(case.queries, case.keys, case.values) is expected
        monkeypatch.setenv(ATTENTION_KERNEL, "yes")
        kernel.wanted.cache_clear()
        with pytest.raises(ConfigError, match="must be 0 or 1, not 'yes'"):
            kernel.wanted()
    finally:
        kernel.wanted.cache_clear()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(("num_kv", "group", "dim"), [(1, 2, TILED), (1, 2, 16), (3, 3, 64)])
def test_a_long_prefill_beside_short_requests(
    causal: bool, dtype: torch.dtype, num_kv: int, group: int, dim: int
) -> None:
    """The last shape is the demo target's."""
    case = Case.random([(300, 40), (1, 500), (8, 33), (0, 10), (260, 0)], num_kv, group, seed=3, dim=dim)
    if dtype is torch.float32:
        plan = case.check(causal=causal)
        assert len(plan.tiles) > 1
        assert max(tile.num_rows for tile in plan.tiles) == tiles.MAX_TILE_ROWS
        return
    plan = build_plan(case.table, case.request_rows, case.q_lens, case.kv_lens, causal=causal)
    low = [x.to(dtype) for x in (case.queries, case.keys, case.values)]
    got = run_plan(plan, *low, SCALE)
    want = naive_attention(case.slots_of(), case.q_lens, *low, SCALE, causal=causal)
    assert got.dtype == dtype
    # Computed in fp32, so that only the result is rounded.
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=1e-4)


def test_bf16_rows_of_a_verification_are_those_of_plain_decoding() -> None:
    """Up to the last bit of a few values, where the two fp32 results round to different sides."""
    case = Case.random([(8, 120)], 3, 3, seed=5)
    low = [x.bfloat16() for x in (case.queries, case.keys, case.values)]
    together = run_plan(build_plan(case.table, case.request_rows, [8], [128], causal=True), *low, SCALE)
    different = 0
    for j in range(8):
        alone = build_plan(case.table, case.request_rows, [1], [121 + j], causal=True)
        got = run_plan(alone, low[0][j : j + 1], *low[1:], SCALE)
        different += int((got != together[j : j + 1]).sum())
        torch.testing.assert_close(got, together[j : j + 1], rtol=2**-7, atol=2**-10)
    assert different < 0.005 * together.numel()
