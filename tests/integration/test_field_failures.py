"""Failures that operators of other engines reported, each with its whole kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.conftest import PlainAnswers
from tests.integration.test_adjusted import is_argmax
from tests.support import arms, pair
from tests.support.processors import TieTwo
from tests.support.server import ServerProcess, concurrently

pytestmark = pytest.mark.server


def test_an_end_in_a_run_that_also_crosses_the_length_is_an_end(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """Stop token at place p of the answer, length limits before, at and after it."""
    requests, expected = {}, {}
    for i in (0, 5, 10, 15):
        tokens = plain.greedy[f"prompt {i}"]["output_ids"]
        for place in range(3, 14):
            stop = tokens[place]
            if stop in tokens[:place]:
                continue
            for limit in (place, place + 1, place + 2, place + 3, place + 6):
                name = f"{i} {place} {limit}"
                requests[name] = pair.generate(pair.prompts()[i], stop_token_ids=[stop], max_new_tokens=limit)
                stops = limit > place
                reason = {"type": "stop", "matched": stop} if stops else {"type": "length", "length": limit}
                expected[name] = (tokens[: place + 1 if stops else limit], reason)
    assert len(requests) > 80
    try:
        for policy in ("adaptive", "static"):
            dspark.ask("/dspark/policy", {"policy": policy})
            for name, answer in arms.answer_all(dspark, requests).items():
                assert (answer["output_ids"], answer["meta_info"]["finish_reason"]) == expected[name], name
    finally:
        dspark.ask("/dspark/policy", {"policy": "adaptive"})


def test_the_first_of_several_ends_in_a_run_counts(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """An end token with a stop string right behind it; and of two stop strings the one that comes first in the text."""
    decode = pair.tokenizer().decode
    requests, expected = {}, {}
    for i in range(24):
        prompt, answer = pair.prompts()[i], plain.greedy[f"prompt {i}"]
        tokens, reason = answer["output_ids"], answer["meta_info"]["finish_reason"]
        if reason["type"] == "stop":
            requests[f"{i} end"] = pair.generate(prompt, stop=["<|im_end|>\n"])
            expected[f"{i} end"] = (tokens, reason)
        for place in range(3, min(12, len(tokens) - 3)):
            first, second = decode(tokens[place : place + 1]), decode(tokens[place + 2 : place + 3])
            if first in decode(tokens[:place]) or second in decode(tokens[: place + 2]):
                continue
            requests[f"{i} {place}"] = pair.generate(prompt, stop=[second, first])
            expected[f"{i} {place}"] = (tokens[: place + 1], {"type": "stop", "matched": first})
    assert sum(name.endswith("end") for name in requests) > 5
    assert len(requests) > 30
    dspark.ask("/dspark/policy", {"policy": "static"})
    try:
        for name, answer in arms.answer_all(dspark, requests).items():
            assert (answer["output_ids"], answer["meta_info"]["finish_reason"]) == expected[name], name
    finally:
        dspark.ask("/dspark/policy", {"policy": "adaptive"})


def test_a_repetition_penalty_breaks_a_loop(dspark: ServerProcess) -> None:
    prompt = pair.tokenizer().encode("hello " * 40)
    loop = dspark.ask(*pair.generate(prompt, ignore_eos=True))["output_ids"]
    free = dspark.ask(*pair.generate(prompt, ignore_eos=True, repetition_penalty=1.15))["output_ids"]
    assert free != loop
    assert len(set(free)) > len(set(loop))
    assert is_argmax(prompt, free, {"repetition_penalty": 1.15})


def test_tied_logits_choose_the_same_token_alone_and_beside_sampled_neighbours(dspark: ServerProcess) -> None:
    """From the first token on, which a prefill of all of them draws."""
    processor = TieTwo.to_str()
    prompts = [prompt[-8:] for prompt in pair.prompts()[:4]]
    sampled = {"temperature": 1.0, "top_k": 5, "max_new_tokens": 8, "ignore_eos": True}
    for first in range(40, 2000, 160):
        tokens = [first + 33, first, first + 7]
        greedy = {**sampled, "temperature": 0, "top_k": -1, "custom_params": {"tokens": tokens}}
        alone = {"input_ids": prompts[0], "sampling_params": greedy, "custom_logit_processor": processor}
        assert dspark.ask("/generate", alone)["output_ids"] == [first] * 8
        together = {
            "input_ids": prompts,
            "sampling_params": [greedy, *[sampled] * 3],
            "custom_logit_processor": [processor, *[None] * 3],
        }
        dspark.flush_cache()
        assert dspark.ask("/generate", together)[0]["output_ids"] == [first] * 8


@pytest.mark.parametrize("narrow", [{"top_p": 1e-4}, {"top_k": 1}, {"top_p": 1e-4, "top_k": 3}, {"min_p": 1.0}])
def test_a_filter_that_leaves_one_token_is_greedy(
    dspark: ServerProcess, plain: PlainAnswers, narrow: dict[str, Any]
) -> None:
    requests = {f"prompt {i}": pair.generate(pair.prompts()[i], temperature=1.0, **narrow) for i in range(0, 40, 2)}
    for name, answer in arms.answer_all(dspark, requests).items():
        assert answer["output_ids"] == plain.greedy[name]["output_ids"], name


def test_a_grammar_that_allows_no_draft_costs_only_speed(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """Letters that the model would never write in a row."""
    requests = {f"{i}": pair.generate(pair.prompts()[i], regex="(q[xz]){12}") for i in range(8)}
    for answer in arms.answer_all(dspark, requests).values():
        assert len(answer["text"]) == 24
        assert set(answer["text"]) <= set("qxz")
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


def test_a_tiny_object_that_ends_inside_a_block_ends_cleanly(dspark: ServerProcess) -> None:
    text = '{"a":1}'
    asked = pair.chat("What is 2 + 3?", ebnf=f"root ::= {json.dumps(text)}")
    for choice in concurrently(lambda _: dspark.ask(*asked)["choices"][0], range(12), 6):
        assert choice["message"]["content"] == text
        assert choice["finish_reason"] == "stop"


def test_a_cached_prefix_is_as_good_as_a_cold_one(dspark: ServerProcess) -> None:
    """The draft's own context over a shared prefix: rounds of the second request are those of a cold one."""
    flat = [token for prompt in pair.prompts() for token in prompt]
    prefix = flat[: pair.CONTEXT_LENGTH - 110]
    # Whole blocks: what is verified otherwise follows what was learned meanwhile.
    dspark.ask("/dspark/policy", {"policy": "static"})
    requests = [pair.generate([*prefix, *pair.prompts()[i][-20:]], ignore_eos=True) for i in range(6)]
    rounds: dict[bool, list[int]] = {}
    for warm in (False, True):
        rounds[warm] = []
        for request in requests:
            if not warm:
                dspark.flush_cache()
            answer = dspark.ask(*request)["meta_info"]
            assert (answer["cached_tokens"] >= len(prefix)) == warm
            rounds[warm].append(answer["spec_verify_ct"])
        if not warm:
            dspark.flush_cache()
            dspark.ask(*pair.generate(prefix, max_new_tokens=1))
    dspark.ask("/dspark/policy", {"policy": "adaptive"})
    assert rounds[True] == rounds[False]


def test_two_hundred_and_fifty_six_requests_drain_to_three(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """Far more than run at once, and of lengths such that the last ones run alone."""
    lengths = {f"{i}": 64 if i % 85 == 0 else 1 + i % 7 for i in range(256)}
    requests = {n: pair.generate(pair.prompts()[int(n) % 200], max_new_tokens=k) for n, k in lengths.items()}
    for name, answer in arms.answer_all(dspark, requests, 256).items():
        assert answer["output_ids"] == plain.greedy[f"prompt {int(name) % 200}"]["output_ids"][: lengths[name]]
    assert dspark.wait_until_idle()["num_used_tokens"] == 0


def test_clients_that_leave_in_prefill_or_from_several_answers(dspark: ServerProcess, plain: PlainAnswers) -> None:
    flat = [token for prompt in pair.prompts() for token in prompt]
    long = pair.generate(flat[: pair.CONTEXT_LENGTH - 80], max_new_tokens=60)
    several = pair.generate(pair.prompts()[3], n=2, temperature=0.8, min_new_tokens=40)

    def leave(request: pair.Request) -> None:
        events = dspark.stream(*request)
        next(events)
        events.close()

    concurrently(leave, [long, several] * 10, 10)
    assert dspark.wait_until_idle()["num_used_tokens"] == 0
    answers = arms.answer_all(dspark, dict(list(arms.greedy_requests().items())[:16]))
    for name, answer in answers.items():
        assert arms.essence(answer) == arms.essence(plain.greedy[name])
