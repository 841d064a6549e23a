"""Prompts: same text for the same hash ids, of the length that was asked for, in labelled categories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.prompts import Composer, Library, estimate
from dspark_loadtest.traces.request import TraceRequest


def words(texts: Sequence[str]) -> list[int]:
    """Count every word as one token."""
    return [len(text.split()) for text in texts]


LIBRARY = Library([None], words)


def test_a_shared_prefix_is_shared_text_up_to_where_ids_part() -> None:
    composer = Composer(LIBRARY, block_size=64)
    one = composer.compose(TraceRequest(0, 64 * 3, 1, (5, 6, 7)), 0)
    two = composer.compose(TraceRequest(0, 64 * 3, 1, (5, 6, 8)), 1)
    other = composer.compose(TraceRequest(0, 64 * 3, 1, (9, 6, 7)), 2)
    both = one.split()[:128]
    assert two.split()[:128] == both
    assert two.split()[128:150] != one.split()[128:150]
    assert other.split()[:64] != both[:64]


def test_the_same_seed_is_the_same_text_and_another_is_not() -> None:
    request = TraceRequest(0, 200, 1, (1, 2, 3, 4))
    texts = [Composer(Library([None], words), 64, seed=seed).compose(request, 3) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


@given(st.integers(1, 700), st.lists(st.integers(0, 50), max_size=8).map(tuple), st.integers(0, 1000))
def test_a_prompt_has_as_many_tokens_as_were_asked_for(tokens: int, ids: tuple[int, ...], index: int) -> None:
    text = Composer(LIBRARY, block_size=64).compose(TraceRequest(0, tokens, 1, ids), index)
    assert len(text.split()) == tokens


def test_categories_follow_the_beginning_so_that_sharers_share_them() -> None:
    composer = Composer(LIBRARY, 64, mix={"maths": 1, "code": 1})
    first = {composer.category(TraceRequest(0, 100, 1, (3, i)), i) for i in range(20)}
    assert len(first) == 1
    drawn = [composer.category(TraceRequest(0, 100, 1), i) for i in range(200)]
    assert set(drawn) == {"maths", "code"}
    assert 60 < drawn.count("maths") < 140
    assert composer.category(TraceRequest(0, 100, 1, category="chat"), 0) == "chat"
    with pytest.raises(LoadtestError, match="asks for category 'poems'; there are: chat, code, maths"):
        composer.category(TraceRequest(0, 100, 1, category="poems"), 0)


def test_texts_may_come_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "poems.jsonl").write_text(json.dumps({"turns": ["Rose is a rose is a rose", "And then?"]}) + "\n")
    library = Library([tmp_path], words)
    assert library.categories == ("poems",)
    text = Composer(library, 64).compose(TraceRequest(0, 30, 1), 0)
    assert set(text.split()) == {"Rose", "is", "a", "rose"}
    with pytest.raises(LoadtestError, match="holds no .jsonl file"):
        Library([_empty(tmp_path)], words)


def _empty(folder: Path) -> Path:
    empty = folder / "empty"
    empty.mkdir()
    return empty


def test_a_mix_must_name_categories_that_there_are() -> None:
    with pytest.raises(LoadtestError, match="no category 'poems'"):
        Composer(LIBRARY, 64, mix={"poems": 1})
    with pytest.raises(LoadtestError, match="weigh nothing"):
        Composer(LIBRARY, 64, mix={"maths": 0})


def test_lengths_are_estimated_where_nobody_counts() -> None:
    assert estimate(["a", " word", "internationalisation"]) == [1, 1, 5]
