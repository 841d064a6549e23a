"""Built-in prompts: seeded, distinct, in disjoint halves; prompt files checked by line."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym")
pytest.importorskip("chatterbot_corpus")

from sgl_dspark.data.corpora import library_prompts, problem_prompts
from sgl_dspark.data.prompts import PromptRecord, read_prompts, write_prompts
from sgl_dspark.data.sources import SOURCES, Source, choose_sources, prompts, split_of
from sgl_dspark.errors import DataError


def first(split: str, seed: int, count: int) -> list[PromptRecord]:
    return list(itertools.islice(prompts(split, seed), count))


def test_prompts_are_a_function_of_the_seed_and_distinct() -> None:
    found = first("train", 3, 300)
    assert found == first("train", 3, 300)
    assert found != first("train", 4, 300)
    assert len({p.id for p in found}) == 300
    groups = {source.name: source.group for source in SOURCES}
    assert {groups[p.kind] for p in found} == {"maths", "code", "chat"}


def test_halves_never_share_a_prompt() -> None:
    train, held_out = first("train", 0, 400), first("held-out", 0, 150)
    assert all(split_of(p.turns[0]) == "train" for p in train)
    assert all(split_of(p.turns[0]) == "held-out" for p in held_out)
    assert not {p.turns for p in train} & {p.turns for p in held_out}


def test_sources_are_chosen_by_name_or_group() -> None:
    assert {s.group for s in choose_sources(["code"])} == {"code"}
    assert {s.name for s in choose_sources(["gcd", "chat"])} == {"gcd", "question", "chat"}
    assert choose_sources([]) == SOURCES
    with pytest.raises(DataError, match="no prompt source 'poems'"):
        choose_sources(["poems"])


def test_a_source_that_is_used_up_ends_and_the_others_go_on() -> None:
    few = Source("few", "chat", 50.0, "", lambda rng: iter(f"few {i}" for i in range(20)))
    looping = Source("loop", "chat", 1.0, "", lambda rng: (f"loop {i % 30}" for i in itertools.count()))
    found = list(prompts("train", 0, (few, looping)))
    assert len(found) == sum(split_of(f"few {i}") == "train" for i in range(20)) + sum(
        split_of(f"loop {i}") == "train" for i in range(30)
    )


def test_every_source_says_what_its_licence_is() -> None:
    assert all(source.licence for source in SOURCES)


def test_problems_and_library_prompts_are_many_and_clean() -> None:
    problems, library = problem_prompts(), library_prompts()
    assert len(problems) > 2000
    assert len(library) > 300
    assert all("main_solution" not in text for text in problems)
    assert all(" at 0x" not in text for text in library)


def test_prompt_files_round_trip_and_drop_repetitions(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    records = [PromptRecord.of(("a", "b"), "k"), PromptRecord.of(("c",), "k")]
    assert write_prompts(path, [*records, records[0]]) == 3
    assert read_prompts(path) == records
    assert read_prompts(path, limit=1) == records[:1]
    path.write_text('{"prompt": "only text"}\n\n')
    assert read_prompts(path) == [PromptRecord.of(("only text",), "some")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense\n", "line 1 is not JSON"),
        ('{"turns": ["a"]}\n[1]\n', "line 2 is not a JSON object"),
        ('{"turns": []}\n', "turns must be"),
        ('{"turns": ["a", 3]}\n', "turns must be"),
        ('{"text": "a"}\n', "turns must be"),
        ("\n", "holds no prompt"),
    ],
)
def test_malformed_prompt_files_are_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_prompts(path)
    with pytest.raises(DataError, match="cannot read prompts"):
        read_prompts(tmp_path / "absent.jsonl")
