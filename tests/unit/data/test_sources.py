"""Built-in prompts: seeded, distinct, in disjoint halves; prompt files checked by line."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym")
pytest.importorskip("chatterbot_corpus")

from sgl_dspark.data.corpora import library_prompts, problem_prompts
from sgl_dspark.data.prompts import PromptRecord, read_prompts, write_prompts
from sgl_dspark.data.sources import SOURCES, Source, choose_sources, prompts
from sgl_dspark.data.split import Drawn, split_of, template_of
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


def test_halves_share_neither_a_prompt_nor_a_template() -> None:
    # All that they are given in any style, by the halves' own seeds and by others.
    train = [*first("train", 0, 1500), *first("train", 2, 1500)]
    held_out = [*first("held-out", 1, 300), *first("held-out", 2, 300)]
    assert not {p.turns for p in train} & {p.turns for p in held_out}
    assert {split_of(p.turns[0]) for p in train if p.kind == "chat"} == {"train"}
    assert {split_of(p.turns[0]) for p in held_out if p.kind == "chat"} == {"held-out"}
    trained_on = {stripped(p.turns[0]) for p in train}
    assert not [p.turns[0] for p in held_out if stripped(p.turns[0]) in trained_on]


def stripped(text: str) -> str:
    """Strike out numbers and what a style adds behind a task, by other means than the split itself."""
    for ending in ("Explain your reasoning step by step.", "Show your work."):
        text = text.removesuffix(ending)
    return re.sub(r"[0-9][0-9.,]*", "0", text.split("\nPlease reason step")[0]).strip()


def test_a_task_of_other_numbers_names_and_lists_is_of_the_same_template() -> None:
    assert template_of("Anna has 3 apples and 1,250.5 pears.") == template_of("Tom has 14 apples and 2 pears.")
    assert template_of("Sort: 3, 2, 88.") == template_of("Sort: 1, 5.") != template_of("Sort: 1 and 5.")
    assert template_of("On 3 May, add 2/3 and 5.") == template_of("On 12 June,  add 1/2 and 7.")
    assert template_of("Add 1 to 2.") != template_of("Take 1 from 2.")


def test_a_function_is_in_one_half_however_it_is_asked_for() -> None:
    forms = Counter(drawn.origin for drawn in library_prompts())
    assert min(forms.values()) == 2


def test_no_source_is_made_from_an_evaluation_set() -> None:
    assert "gsm_symbolic" not in {source.name for source in SOURCES}


def test_a_source_with_nothing_in_a_half_is_left_out_of_it() -> None:
    here = next(w for w in "abcdefgh" if split_of(w) == "train")
    one = Source("one", "maths", 1.0, "", lambda rng: (Drawn(f"{here} {i}", here) for i in itertools.count()))
    assert list(itertools.islice(prompts("held-out", 0, (one,)), 1)) == []
    assert len(list(itertools.islice(prompts("train", 0, (one,)), 7))) == 7


def test_sources_are_chosen_by_name_or_group() -> None:
    assert {s.group for s in choose_sources(["code"])} == {"code"}
    assert {s.name for s in choose_sources(["gcd", "chat"])} == {"gcd", "question", "chat"}
    assert choose_sources([]) == SOURCES
    with pytest.raises(DataError, match="no prompt source 'poems'"):
        choose_sources(["poems"])


def test_a_source_that_is_used_up_ends_and_the_others_go_on() -> None:
    words = [f"{a}{b}" for a in "abcdef" for b in "uvwxyz"]
    few = Source("few", "chat", 50.0, "", lambda rng: (Drawn(w, w) for w in words[:20]))
    looping = Source("loop", "chat", 1.0, "", lambda rng: (Drawn("again " + w, w) for w in itertools.cycle(words)))
    found = list(prompts("train", 0, (few, looping)))
    assert len(found) == sum(split_of(w) == "train" for w in [*words[:20], *words])


def test_every_source_says_what_its_licence_is() -> None:
    assert all(source.licence for source in SOURCES)


def test_problems_and_library_prompts_are_many_and_clean() -> None:
    problems, library = problem_prompts(), library_prompts()
    assert len(problems) > 2000
    assert len(library) > 300
    assert all("main_solution" not in text for text, _ in problems)
    assert all(" at 0x" not in text for text, _ in library)


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
