from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sglang")

from dspark_sglang.fingerprint import default_profile, weights_id
from dspark_sglang.probes import LONG_CONTEXT, SHORT_CONTEXT, ladder


def test_the_ladder_covers_every_width_of_few_requests_and_reaches_the_most() -> None:
    points = ladder(48, 7, 1 << 20, 2048)
    assert {p.tokens for p in points if p.requests == 1} == set(range(1, 9))
    assert points[-1].tokens == 48 * 8
    # Two contexts at one size are what the price of context is fitted to.
    assert {p.context for p in points if (p.requests, p.tokens) == (4, 32)} == {SHORT_CONTEXT, LONG_CONTEXT}
    assert len(points) < 60


@given(st.integers(1, 300), st.integers(1, 16), st.integers(0, 5000), st.integers(1, 3000))
def test_every_size_fits_the_pool_and_the_context(requests: int, gamma: int, room: int, context_length: int) -> None:
    for point in ladder(requests, gamma, room, context_length):
        assert 1 <= point.context <= context_length - gamma - 1
        assert point.requests * (point.context + gamma + 1) < room
        assert point.tokens % point.requests == 0
        assert point.requests <= requests


def test_where_not_even_one_request_fits_there_is_nothing_to_measure() -> None:
    assert ladder(4, 7, 100, 2048) == []
    assert ladder(4, 7, 1 << 20, 8) == []


def test_pairs_keep_their_step_times_apart() -> None:
    assert default_profile("/models/a", "/drafts/x") != default_profile("/models/a", "/drafts/y")


def test_weights_are_told_apart_by_content_and_size(tmp_path: Path) -> None:
    assert weights_id("owner/model") == "unknown"
    (tmp_path / "model.safetensors").write_bytes(b"a" * 100)
    first = weights_id(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"b" * 100)
    second = weights_id(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"b" * 101)
    assert len({first, second, weights_id(tmp_path)}) == 3
