"""An answer ends where it would if its tokens came one at a time, however they are accepted."""

from __future__ import annotations

import inspect
from array import array
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("sglang")

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from dspark_sglang.stops import end_at_the_first

LETTERS, END, STOP_TOKEN = "abc\n", 4, 3


class Letters:
    """A tokenizer of one letter per token; the end token is a word."""

    eos_token_id = END
    additional_stop_token_ids = None

    def encode(self, text: str, **_: Any) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def decode(self, ids: Any) -> str:
        return "".join([*LETTERS, "<end>"][i] for i in ids)


def request(stop: list[str], regex: list[str], stop_tokens: list[int], most: int, ignore_eos: bool = False) -> Any:
    made = Req.__new__(Req)
    made.sampling_params = SamplingParams(
        max_new_tokens=most, stop=stop, stop_regex=regex, stop_token_ids=stop_tokens, ignore_eos=ignore_eos
    )
    made.sampling_params.normalize(Letters())
    made.tokenizer, made.eos_token_ids, made.vocab_size = Letters(), {END}, END + 1
    made.output_ids, made.decoded_text, made.grammar = array("q"), "", None
    made.finished_reason = made.finished_len = made.to_finish = None
    return made


def answer(made: Any, runs: list[list[int]], wrapped: bool) -> tuple[list[int], Any]:
    """Hand the tokens over run by run; what is left of them, and why."""
    # Other tests of this process may have put the hooks in place.
    sglangs_own = inspect.unwrap(Req.update_finish_state)
    for run in runs:
        made.output_ids.extend(run)
        if wrapped:
            end_at_the_first(sglangs_own, made, len(run))
        else:
            sglangs_own(made, len(run))
        if made.finished():
            break
    reason = made.finished_reason
    return list(made.output_ids_through_stop), reason and reason.to_json()


def split(tokens: list[int], lengths: list[int]) -> list[list[int]]:
    runs, place = [], 0
    for length in lengths:
        runs.append(tokens[place : place + length])
        place += length
    return [run for run in [*runs, tokens[place:]] if run]


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(0, END), min_size=1, max_size=14),
    st.lists(st.integers(1, 6), max_size=4),
    st.lists(st.sampled_from(["a", "ab", "ba", "\n", "bc", "cc", "aa"]), max_size=3),
    st.lists(st.sampled_from(["a+b", "c$", "b|cc"]), max_size=2),
    st.sampled_from([[], [STOP_TOKEN]]),
    st.integers(1, 16),
    st.booleans(),
)
@example([0, END, 3], [3], ["\n"], [], [], 9, False)  # an end token before a stop string
@example([0, 1, 2], [3], ["c", "a"], [], [], 9, False)  # the second string of the list comes first
@example([0, END, 1, 3], [4], ["\n"], [], [], 3, False)  # the stop string is beyond the last token, the end is not
@example([0, END, 3], [3], ["\n"], [], [], 2, False)  # the end is the last token
def test_runs_end_as_single_tokens_do(
    tokens: list[int],
    lengths: list[int],
    stop: list[str],
    regex: list[str],
    stop_tokens: list[int],
    most: int,
    ignore_eos: bool,
) -> None:
    given_to = (stop, regex, stop_tokens, most, ignore_eos)
    singly = answer(request(*given_to), [[token] for token in tokens], wrapped=False)
    assert answer(request(*given_to), split(tokens, lengths), wrapped=True) == singly


def test_sglang_alone_keeps_what_comes_after_the_end() -> None:
    """The reason for the wrapping; when this fails, it can go."""
    kept, reason = answer(request(["\n"], [], [], 9), [[0, END, 1, 3]], wrapped=False)
    assert (kept, reason) == ([0, END, 1, 3], {"type": "stop", "matched": "\n"})


def test_what_has_ended_stays_as_it_is() -> None:
    made = request(["\n"], [], [], 9)
    before = answer(made, [[0, END]], wrapped=True)
    assert answer(made, [[1, 3]], wrapped=True)[1] == before[1]
