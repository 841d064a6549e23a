"""What is counted of steps, and that accepted and bonus tokens are what clients get, whatever happens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recorded import GAMMA, Engine, Request


def test_a_request_from_its_first_token_to_its_end() -> None:
    engine, request = Engine(), Request("a", 1)
    engine.prefill([request])
    step = engine.launch([request], [3])
    engine.verdict(step, [2])
    engine.stream(step)
    step = engine.launch([request], [3])
    engine.verdict(step, [3])
    request.end("length", len(request.output_ids) - 2)
    engine.stream(step, [request])
    assert engine.value("dspark_bonus_tokens_total").tolist() == [1.0, 1.0]
    assert engine.value("dspark_accepted_tokens_total") == 4.0
    assert engine.value("dspark_cut_tokens_total") == 2.0
    assert engine.value("dspark_verified_tokens_total") == 6.0
    assert engine.value("dspark_requests_finished_total").tolist() == [0.0, 1.0, 0.0]
    assert engine.delivered() == request.received == 6


def test_lengths_and_slots_are_those_of_the_rounds() -> None:
    engine, requests = Engine(), [Request("a", 1), Request("b", 2)]
    engine.prefill(requests)
    step = engine.launch(requests, [3, 1], policy="static")
    engine.verdict(step, [1, 1])
    engine.stream(step)
    assert engine.value("dspark_slot_verified_total").tolist() == [2.0, 1.0, 1.0]
    assert engine.value("dspark_slot_accepted_total").tolist() == [2.0, 0.0, 0.0]
    # Slot 1 of the second was not verified, slot 2 of the first not judged: a draft before it had been rejected.
    assert engine.value("dspark_slot_judged_total").tolist() == [2.0, 1.0, 0.0]
    static = engine.sheet.index("policy", "static")
    assert engine.value("dspark_verify_length_tokens")[static].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 6.0]
    assert engine.value("dspark_accept_length_tokens")[static].tolist() == [0.0, 2.0, 0.0, 0.0, 0.0, 4.0]


def test_a_launched_step() -> None:
    engine, requests = Engine(), [Request("a", 1), Request("b", 2)]
    engine.launch(requests, [3, 2], tiers=np.array([2, 4, 8]))
    engine.launch(requests, [0, 0], drafts=False)
    assert engine.value("dspark_verify_tokens_total") == 9.0
    assert engine.value("dspark_padding_tokens_total") == 1.0
    assert engine.value("dspark_proposed_tokens_total") == 2 * GAMMA
    assert engine.value("dspark_undrafted_rounds_total").tolist() == [2.0, 0.0]
    adaptive = engine.sheet.index("policy", "adaptive")
    assert engine.value("dspark_steps_total")[adaptive].tolist() == [1.0, 1.0]
    budget = engine.value("dspark_verify_budget_drafts")[adaptive]
    edges = engine.sheet.edges["dspark_verify_budget_drafts"]
    assert budget[edges.index(0.0)] == budget[edges.index(8.0)] == 1.0
    assert budget[-1] == 5.0


@pytest.mark.parametrize("timed_first", [True, False])
def test_tokens_by_load_are_those_of_timed_steps_in_either_order(timed_first: bool) -> None:
    engine, requests = Engine(), [Request(str(i), i + 1) for i in range(3)]
    engine.prefill(requests)
    steps = [engine.launch(requests, [1, 1, 1]) for _ in range(2)]
    if timed_first:
        engine.recorder.timed(steps[0], 0.01, 0.02)
        engine.fold.fold()
    for step in steps:
        engine.verdict(step, [1, 0, 1])
        engine.stream(step)
    if not timed_first:
        engine.fold.fold()
        engine.recorder.timed(steps[0], 0.01, 0.02)
    load = engine.sheet.index("load", "4")
    assert engine.value("dspark_load_tokens_total")[load] == 5.0
    assert engine.value("dspark_load_rounds_total")[load] == 3.0
    assert engine.value("dspark_load_seconds_total")[load] == 0.02


def test_predictions_stand_beside_what_they_came_to() -> None:
    engine, requests = Engine(), [Request("a", 1), Request("b", 2)]
    engine.prefill(requests)
    step = engine.launch(requests, [1, 1], expected=[1.5, 1.25], planned=2.5)
    engine.recorder.timed(step, 0.01, 0.02)
    engine.verdict(step, [1, 0])
    engine.stream(step)
    assert engine.value("dspark_expected_tokens_total") == 2.75
    assert engine.value("dspark_planned_tokens_total") == 2.5
    assert engine.value("dspark_expected_actual_tokens_total") == 3.0
    assert engine.value("dspark_predicted_step_seconds_total") == 0.01
    assert engine.value("dspark_predicted_actual_seconds_total") == 0.02
    errors = engine.value("dspark_step_time_error_ratio")
    assert errors[engine.sheet.edges["dspark_step_time_error_ratio"].index(0.5)] == 1.0


def test_reliability_counts_judged_drafts_only() -> None:
    engine = Engine()
    logits = np.array([[5.0, 0.0, 5.0], [5.0, -5.0, 0.0], [np.nan, 0.0, 0.0]], np.float32)
    engine.recorder.rounds(logits, np.array([3, 2, 3]), np.array([1, 2, 0]), np.array([False, True, False]))
    # Judged: both drafts of the second, two of the first (its second was rejected), none whose confidence is unknown.
    assert engine.value("dspark_calibration_judged_total").tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    assert engine.value("dspark_calibration_accepted_total").tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert engine.value("dspark_calibration_confidence_total")[5] == pytest.approx(0.5)


def test_what_is_dropped_while_it_waits_is_an_abort() -> None:
    engine, request = Engine(), Request("a")
    engine.recorder.aborted(request)
    engine.recorder.aborted(request)
    assert engine.value("dspark_requests_finished_total").tolist() == [0.0, 0.0, 1.0]
    assert engine.delivered() == 0.0


@given(st.data())
def test_delivered_tokens_are_those_of_the_clients(data: st.DataObject) -> None:
    """Ends, cuts, retractions, chunked prefills, slots given away and lost verdicts, in any order."""
    engine = Engine()
    running: list[Request] = []
    waiting: list[Request] = []
    everyone: list[Request] = []
    for number in range(data.draw(st.integers(1, 25))):
        free = sorted({1, 2, 3} - {request.kv.req_pool_idx for request in running})
        action = data.draw(st.sampled_from(["prefill", "decode", "decode", "retract", "abort"]))
        if action == "prefill" and free:
            request = waiting.pop() if waiting and data.draw(st.booleans()) else Request(f"r{number}")
            if request not in everyone:
                everyone.append(request)
            request.kv.req_pool_idx = free[0]
            if data.draw(st.booleans()):
                engine.prefill([request], skipped=request)
            engine.prefill([request])
            running.append(request)
        elif action == "decode" and running:
            step = engine.launch(running, [GAMMA] * len(running))
            accepted = data.draw(st.lists(st.integers(0, GAMMA), min_size=len(running), max_size=len(running)))
            lost = data.draw(st.integers(0, 4)) == 0
            engine.verdict(step, accepted, lost)
            ended = [request for request in running if data.draw(st.integers(0, 3)) == 0]
            for request in ended:
                run = accepted[running.index(request)] + 1
                kept = data.draw(st.integers(1, run))
                request.end("stop", len(request.output_ids) - run + kept)
            engine.stream(step, ended)
            running = [request for request in running if request not in ended]
        elif action == "retract" and running:
            waiting.append(running.pop(data.draw(st.integers(0, len(running) - 1))))
            waiting[-1].kv.req_pool_idx = None
        elif action == "abort" and waiting:
            engine.recorder.aborted(waiting.pop())
    assert engine.delivered() == sum(request.received for request in everyone)
    over = sum(request.finished() for request in everyone)
    assert engine.value("dspark_requests_finished_total")[:2].sum() == over
