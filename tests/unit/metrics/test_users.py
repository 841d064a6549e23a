"""Spans of answers: how fast a user gets tokens, and which anchors that meets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sglang.metrics.definitions import USER_SPEED
from dspark_sglang.metrics.sheet import Sheet
from dspark_sglang.metrics.speed import Speed
from dspark_sglang.metrics.users import LOOK_S, SPAN_S, Span, Users
from tests.support.recorded import Request

FIRST = 100.0


def started(slot: int = 1) -> tuple[Users, Request]:
    users, request = Users(4), Request("a", slot)
    assert users.deliver(request, slot, 1, FIRST) == 1
    return users, request


def emit(users: Users, slot: int, accepted: int, now: float) -> None:
    users.step(np.array([slot]), np.array([accepted]), now)


def test_a_short_answer_is_one_span_from_its_first_token() -> None:
    users, request = started()
    emit(users, 1, 3, FIRST + 0.2)
    emit(users, 1, 3, FIRST + 0.4)
    assert users.finish(request, 9, FIRST + 0.4) == 0
    assert list(users.spans) == [Span(8, pytest.approx(0.4), True)]


def test_a_long_answer_ends_spans_while_it_runs() -> None:
    users, request = started()
    for tick in range(1, 91):
        emit(users, 1, 0, FIRST + tick * 0.1)
    assert [span.whole for span in users.spans] == [True] * 4
    for span in users.spans:
        assert SPAN_S <= span.seconds < SPAN_S + 0.3
        assert span.tokens / span.seconds == pytest.approx(10.0, rel=1e-6)
    users.finish(request, 91, FIRST + 9.0)
    assert sum(span.tokens for span in users.spans) == 90
    assert sum(span.seconds for span in users.spans) == pytest.approx(9.0)


def test_a_short_rest_counts_in_the_sums_only() -> None:
    users, request = started()
    emit(users, 1, 7, FIRST + SPAN_S)
    emit(users, 1, 0, FIRST + SPAN_S + 0.1)
    users.finish(request, 10, FIRST + SPAN_S + 0.1)
    assert [span.whole for span in users.spans] == [True, False]
    speed = Speed(sheet := Sheet(3, (1.0,)))
    speed.add(list(users.spans))
    assert sheet.view("dspark_user_tokens_total") == 9.0
    assert sheet.view(USER_SPEED)[:-1].sum() == 1.0


def test_an_answer_of_one_token_has_no_speed() -> None:
    users, request = started()
    users.finish(request, 1, FIRST + 0.5)
    assert not users.spans
    only = Request("b", 2)
    assert users.finish(only, 1, FIRST) == 1
    assert not users.spans


def test_the_wait_of_a_retracted_request_is_time_it_waited() -> None:
    users, request = started()
    emit(users, 1, 3, FIRST + 0.5)
    # Its slot goes to another, and it comes back in a third.
    assert users.deliver(Request("b", 1), 1, 1, FIRST + 1.0) == 1
    assert users.deliver(request, 3, 6, FIRST + 4.0) == 1
    users.finish(request, 6, FIRST + 4.0)
    assert list(users.spans) == [Span(5, pytest.approx(4.0), True)]


def test_an_anchor_is_met_by_who_gets_exactly_that() -> None:
    sheet = Sheet(3, (20.0, 50.0))
    Speed(sheet).add([Span(20, 1.0), Span(50, 1.0), Span(49, 1.0)])
    assert sheet.view("dspark_sla_seconds_total").tolist() == [[3.0, 0.0], [1.0, 2.0]]
    histogram = sheet.view(USER_SPEED)
    assert histogram[sheet.edges[USER_SPEED].index(20.0)] == 1.0
    assert histogram[-1] == 119.0


def test_a_stall_counts_with_its_length() -> None:
    """Twenty seconds at 50 tokens per second, then twenty without a token: half of the time, not one span in ten."""
    users, _ = started()
    for tick in range(1, 251):
        emit(users, 1, 3, FIRST + tick * 0.08)
    emit(users, 1, 0, FIRST + 40.0)
    sheet = Sheet(3, (20.0,))
    Speed(sheet).add(list(users.spans))
    met, missed = sheet.view("dspark_sla_seconds_total")[0]
    assert met + missed == pytest.approx(40.0)
    # What had been got of the span in which the stall began goes with it.
    assert 20.0 <= missed < 20.0 + SPAN_S + LOOK_S + 0.08
    histogram = sheet.view(USER_SPEED)[:-1]
    stalled = histogram[: sheet.edges[USER_SPEED].index(20.0) + 1].sum()
    assert stalled == missed // SPAN_S
    assert histogram.sum() - stalled == len(users.spans) - 1


@pytest.mark.parametrize("parked", [False, True])
def test_who_gives_up_in_a_stall_has_waited(parked: bool) -> None:
    users, request = started()
    emit(users, 1, 7, FIRST + SPAN_S)
    if parked:
        assert users.deliver(Request("b", 1), 1, 1, FIRST + SPAN_S + 1.0) == 1
    users.finish(request, 9, FIRST + SPAN_S + 30.0)
    assert list(users.spans) == [Span(8, SPAN_S), Span(0, pytest.approx(30.0), True)]
    Speed(sheet := Sheet(3, (1.0,))).add(list(users.spans))
    assert sheet.view("dspark_sla_seconds_total")[0].tolist() == [SPAN_S, pytest.approx(30.0)]


@given(st.lists(st.tuples(st.sampled_from([0.02, 0.04, 0.1, 0.4]), st.integers(1, 400)), min_size=1, max_size=6))
def test_attainment_is_that_of_who_holds_a_clock(answers: list[tuple[float, int]]) -> None:
    """Requests at a steady speed each: seconds at 20 tokens per second or more, but for rests below half a span."""
    sheet = Sheet(3, (20.0,))
    speed = Speed(sheet)
    fast, slow = [], []
    for gap, steps in answers:
        users, request = started()
        for i in range(1, steps + 1):
            emit(users, 1, 0, FIRST + i * gap)
        users.finish(request, steps + 1, FIRST + steps * gap)
        speed.add(list(users.spans))
        (fast if gap <= 0.05 else slow).append(steps * gap)
    for counted, clocked in zip(sheet.view("dspark_sla_seconds_total")[0], (fast, slow), strict=True):
        assert sum(clocked) - SPAN_S / 2 * len(clocked) <= counted + 1e-6
        assert counted <= sum(clocked) + 1e-6
