"""What `make cluster-demo` calls wrong: texts cut, doubled or other, losses elsewhere, counters that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_loadtest.record import INTERRUPTED, OK, RequestRecord
from tests.support.cluster import Counts
from tests.support.cluster_load import (
    Stroke,
    by_replica,
    described,
    disagreements,
    lost,
    not_beginnings,
    wrong_answers,
)

A, B = "http://a", "http://b"
EXPECTED = ["one two three", "four five six"]


def record(index: int, text: str, *, outcome: str = OK, replica: str = A, seen: int = 3) -> RequestRecord:
    return RequestRecord(
        index, outcome=outcome, text=text, replica=replica, seen_tokens=seen, completion_tokens=seen, first=0.0
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("one two three", []), ("one two", [0]), ("one two two three", [0]), ("one two tree", [0]), ("", [0])],
)
def test_an_answer_that_ends_well_must_be_the_expected_one(text: str, wrong: list[int]) -> None:
    assert wrong_answers([record(0, text), record(1, "four five six")], EXPECTED) == wrong


def test_usage_that_went_back_is_wrong_even_if_the_text_is_right() -> None:
    back = record(0, EXPECTED[0])
    back.went_back = True
    assert wrong_answers([back], EXPECTED) == [0]


@pytest.mark.parametrize(("text", "wrong"), [("one two", []), ("", []), ("one one", [1]), ("two", [1])])
def test_a_lost_answer_must_be_a_beginning(text: str, wrong: list[int]) -> None:
    broken = replace(record(1, text, outcome="stream_error"), index=1)
    records = [record(0, EXPECTED[0]), broken]
    expected = [EXPECTED[0], EXPECTED[0]]
    assert lost(records) == [broken]
    assert not_beginnings(records, expected) == wrong
    (one,) = described(records, expected)
    assert (one["ended_with"], one["is_the_beginning"]) == ("stream_error", not wrong)
    assert by_replica(records) == {A: 1}


def under_way(index: int, seen: int, replica: str = A, outcome: str = INTERRUPTED) -> RequestRecord:
    made = record(index, "", outcome=outcome, replica=replica, seen=seen)
    made.asked_output = 100
    return made


def test_the_stroke_waits_for_streams_that_have_begun_and_have_far_to_go() -> None:
    hits: list[str] = []
    stroke = Stroke(hits.append, begun=2)
    waiting = under_way(2, 0)
    waiting.first = None
    early = [under_way(0, 20), under_way(1, 30, B), waiting, under_way(3, 2), under_way(4, 90), under_way(5, 30, A, OK)]
    stroke.look(early)
    assert (hits, stroke.replica) == ([], None)
    stroke.look([*early, under_way(6, 50)])
    # Whatever streamed from there is noted, also what was nearly done; once is enough.
    assert (hits, stroke.replica, stroke.struck) == ([A], A, [0, 3, 4, 6])
    stroke.look([*early, under_way(7, 50, B)])
    assert hits == [A]


def counts(*, requests: float, tokens: float, routed: float, answered: float, broken: float = 0) -> Counts:
    own = {"num_requests_total": requests, "generation_tokens_total": tokens, "prompt_tokens_total": 0.0}
    return Counts({A: routed}, answered, broken, 0, {A: own}, {A: dict(own)})


def test_counters_that_agree_are_silent_and_each_difference_is_a_sentence() -> None:
    before = counts(requests=5, tokens=50, routed=7, answered=9)
    records = [record(0, EXPECTED[0]), record(1, EXPECTED[1]), record(1, "four", outcome="stream_error", replica=B)]
    right = counts(requests=7, tokens=56, routed=9, answered=12, broken=1)
    assert disagreements(before, right, records) == []
    for after, word in (
        (replace(right, answered=11), "answers that began: clients 3, gateway 2"),
        (replace(right, broken=0), "answers that broke: clients 1, gateway 0"),
        (replace(right, routed={A: 10}), "the gateway sent 3 requests"),
        (counts(requests=7, tokens=57, routed=9, answered=12, broken=1), "tokens of answers at http://a: clients 6"),
        (counts(requests=8, tokens=56, routed=9, answered=12, broken=1), "requests at http://a: clients 2, replica 3"),
    ):
        (difference,) = disagreements(before, after, records)
        assert word in difference
    handed = {A: {**right.passed_on[A], "generation_tokens_total": 0.0}}
    (difference,) = disagreements(before, replace(right, passed_on=handed), records)
    assert difference.endswith("by the gateway -50")
