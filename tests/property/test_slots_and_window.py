"""Slot assignment and the verification window against loops over requests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sglang")
from dspark_sglang.slots import assign_req_to_token
from dspark_sglang.verify import BlockLayout, VerifyInput

WIDTH = 24
SPANS = st.lists(st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH)), max_size=6)
INDEX = st.sampled_from([torch.int32, torch.int64])


@settings(max_examples=150, deadline=None)
@given(spans=SPANS, index=INDEX, lens=INDEX, seed=st.integers(0, 10**6))
def test_assigned_slots(spans: list[tuple[int, int]], index: torch.dtype, lens: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    start, end = [min(s) for s in spans], [max(s) for s in spans]
    rows = torch.randperm(8, generator=generator)[: len(spans)]
    slots = torch.randint(1, 1000, (sum(end) - sum(start),), generator=generator)
    table = torch.zeros(8, WIDTH, dtype=torch.int32)
    want, taken = table.clone(), 0
    for r, row in enumerate(rows.tolist()):
        for column in range(start[r], end[r]):
            want[row, column] = slots[taken]
            taken += 1
    made = assign_req_to_token(
        rows.to(index), table, torch.tensor(start, dtype=lens), torch.tensor(end, dtype=lens), slots
    )
    assert made is None
    assert torch.equal(table, want)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, WIDTH - 1), st.integers(1, 8)), min_size=1, max_size=6),
    stride=st.integers(2, 8),
    seed=st.integers(0, 10**6),
)
def test_window_of_mixed_lengths(requests: list[tuple[int, int]], stride: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prefix = [p for p, _ in requests]
    # A window that would pass the table's end is verified up to there only.
    lens = [min(v, stride, WIDTH - p) for p, v in requests]
    rows = torch.randperm(9, generator=generator)[: len(requests)]
    table = torch.randint(10_000, (9, WIDTH), generator=generator, dtype=torch.int32)
    window = BlockLayout.build(
        seq_lens=torch.tensor(prefix),
        prefix_lens_cpu=torch.tensor(prefix),
        req_pool_indices=rows,
        req_to_token=table,
        offsets=torch.arange(stride),
        max_positions=WIDTH,
    ).window(torch.tensor(lens))
    assert int(window.positions.max()) < WIDTH
    flat = [(r, i) for r, length in enumerate(lens) for i in range(length)]
    assert window.pack(window.positions).tolist() == [prefix[r] + i for r, i in flat]
    assert window.pack(window.slots).tolist() == [int(table[rows[r], prefix[r] + i]) for r, i in flat]
    assert window.qo_indptr.tolist() == [sum(lens[:r]) for r in range(len(lens) + 1)]
    assert window.verify_lens.tolist() == window.verify_lens_list == lens
    assert (window.packed is None) == (lens == [stride] * len(lens))
    values = torch.randn(len(flat), 3, generator=generator)
    spread = window.unpack(values)
    assert spread.shape == (len(lens) * stride, 3)
    for row, (r, i) in enumerate(flat):
        assert torch.equal(spread[r * stride + i], values[row])
    assert int((spread != 0).any(1).sum()) == len(flat)

    tokens = torch.arange(len(flat))
    made = VerifyInput.of(tokens, window)
    assert torch.equal(made.draft_token, tokens)
    assert made.draft_token_num == stride
    assert (made.verify_lens_cpu, made.prefix_lens_cpu) == (lens, prefix)


def test_a_request_past_its_end_stays_inside_the_rotary_table_and_its_own_slots() -> None:
    """Under overlap a request that has reached the context length runs one step more, whose result is dropped."""
    limit, stride = 16, 4
    table = torch.arange(2 * (limit + 2 * stride), dtype=torch.int32).view(2, -1)
    window = BlockLayout.build(
        seq_lens=torch.tensor([limit]),
        prefix_lens_cpu=torch.tensor([limit]),
        req_pool_indices=torch.tensor([1]),
        req_to_token=table,
        offsets=torch.arange(stride),
        max_positions=limit,
    ).window(torch.tensor([1]))
    assert window.pack(window.positions).tolist() == [limit - 1]
    assert window.pack(window.slots).tolist() == [int(table[1, limit])]
