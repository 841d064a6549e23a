"""What a plan decides: which requests share a tile, what is read, what is refused."""

from __future__ import annotations

import pytest
import torch

from dspark_sglang.attention import tiles
from dspark_sglang.attention.layout import build_plan

TABLE = torch.arange(4 * 2000, dtype=torch.int32).view(4, 2000)
ALL = torch.arange(4)


def test_requests_of_like_size_share_one_dense_tile() -> None:
    plan = build_plan(TABLE, ALL, [8] * 4, [60, 64, 70, 66], causal=True)
    (tile,) = plan.tiles
    assert (tile.num_requests, tile.num_rows, tile.kv_len) == (4, 8, 70)
    assert tile.rows is None
    assert tile.keep is None


def test_plain_decode_of_one_length_needs_no_mask() -> None:
    (tile,) = build_plan(TABLE, ALL, [1] * 4, [9] * 4, causal=True).tiles
    assert tile.last_visible is None
    assert tile.bias(2) is None
    assert tile.slots.tolist() == TABLE[:, :9].flatten().tolist()


def test_padding_is_bounded() -> None:
    lens = [1900, 30, 1800, 25]
    plan = build_plan(TABLE, ALL, [8] * 4, lens, causal=True)
    area = sum(t.num_requests * t.num_rows * t.kv_len for t in plan.tiles)
    assert area <= tiles.PADDING_FACTOR * 8 * sum(lens) + tiles.PADDING_FREE_AREA * len(plan.tiles)
    assert len(plan.tiles) == 2


def test_a_causal_piece_reads_no_kv_past_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PADDING_FACTOR", 1.0)
    plan = build_plan(TABLE, ALL[:1], [600], [700], causal=True)
    assert sorted((t.num_rows, t.kv_len) for t in plan.tiles) == [(88, 700), (256, 356), (256, 612)]


def test_a_block_sees_all_of_its_kv_in_every_piece() -> None:
    plan = build_plan(TABLE, ALL[:1], [300], [310], causal=False)
    assert {t.kv_len for t in plan.tiles} == {310}
    assert all(t.last_visible is None for t in plan.tiles)


def test_bias_is_built_once_per_group() -> None:
    (tile,) = build_plan(TABLE, ALL[:2], [3, 3], [5, 9], causal=True).tiles
    bias = tile.bias(2)
    assert bias is not None
    assert bias.shape == (2, 1, 6, 9)
    assert tile.bias(2) is bias
    assert tile.bias(1) is not bias
    visible = (bias[:, 0] == 0).sum(-1).tolist()
    assert visible == [[3, 3, 4, 4, 5, 5], [7, 7, 8, 8, 9, 9]]


def test_no_rows_make_no_tiles() -> None:
    plan = build_plan(TABLE, ALL[:2], [0, 0], [3, 0], causal=True)
    assert plan.tiles == []
    assert plan.num_rows == 0


@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 2), (-1, 2)])
def test_rows_that_do_not_fit_are_refused(q_len: int, kv_len: int) -> None:
    with pytest.raises(ValueError, match=f"request 1: {q_len} query rows do not fit in {kv_len} KV tokens"):
        build_plan(TABLE, ALL[:2], [1, q_len], [1, kv_len], causal=True)
