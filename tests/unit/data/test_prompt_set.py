"""The built-in prompts, files of prompts, and their order."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from sgl_dspark.data.prompt_set import Prompt, load_prompts, order_prompts, prompts_hash, take
from sgl_dspark.errors import DataError


def _texts(prompts: list[Prompt]) -> list[str]:
    return [p.messages[-1]["content"] for p in prompts]


def test_the_built_in_set_has_enough_of_each_category_and_no_prompt_twice() -> None:
    prompts = load_prompts(None)
    assert set(Counter(p.category for p in prompts)) == {"maths", "code", "chat"}
    assert min(Counter(p.category for p in prompts).values()) >= 24
    assert len(set(_texts(prompts))) == len(prompts)
    assert {p.category for p in load_prompts(None, ["code"])} == {"code"}


def test_no_built_in_prompt_is_a_question_that_drafts_are_trained_on() -> None:
    pytest.importorskip("reasoning_gym")
    pytest.importorskip("chatterbot_corpus")
    from sgl_dspark.data.sources import prompts

    def plain(text: str) -> str:
        return " ".join("".join(c for c in text.lower() if c.isalnum() or c.isspace()).split())

    trained_on = {plain(record.turns[0]) for record in itertools.islice(prompts("train", 0), 6000)}
    assert not {plain(t) for t in _texts(load_prompts(None))} & trained_on


def test_a_file_may_hold_three_forms(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_text(
        '{"prompt": "a", "category": "x"}\n\n{"turns": ["b", "later"], "kind": "y"}\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}]}\n'
    )
    prompts = load_prompts(file)
    assert _texts(prompts) == ["a", "b", "c"]
    assert [p.category for p in prompts] == ["x", "y", "mixed"]
    assert [len(p.messages) for p in prompts] == [1, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompt"),
        ('{"prompt": "a"}\nnonsense', "line 2 is not JSON"),
        ('{"text": "a"}', "line 1 holds none of"),
        ('{"turns": []}', "line 1 holds none of"),
        ('["a"]', "line 1 holds none of"),
        ('{"prompt": " "}', "line 1 holds none of"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        load_prompts(file)


def test_a_missing_file_and_an_unknown_category(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        load_prompts(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="no category 'maps'.*: chat, code, maths"):
        load_prompts(None, ["maps"])


def test_the_order_is_seeded_and_every_beginning_is_mixed() -> None:
    prompts = load_prompts(None)
    first = order_prompts(prompts, 0)
    assert first == order_prompts(prompts, 0) != order_prompts(prompts, 1)
    assert Counter(_texts(first)) == Counter(_texts(prompts))
    assert all(set(Counter(p.category for p in first[: 3 * k]).values()) == {k} for k in range(1, 24))
    assert prompts_hash(first) == prompts_hash(order_prompts(prompts, 0)) != prompts_hash(order_prompts(prompts, 1))


def test_more_requests_than_prompts_begin_again() -> None:
    prompts = load_prompts(None)[:2]
    assert take(prompts, 5) == [prompts[i] for i in (0, 1, 0, 1, 0)]
