"""Greedy text is the target's own, token for token: cold and warm, whole and streamed, alone and beside sampling."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.conftest import PlainAnswers
from tests.support import arms, pair
from tests.support.server import ServerProcess, concurrently

pytestmark = pytest.mark.server
MEAN_ACCEPT_LEN = 3.5


def cached(answers: dict[str, Any]) -> int:
    return sum(answer["meta_info"]["cached_tokens"] for answer in answers.values())


def test_two_hundred_prompts_cold_and_then_warm(dspark: ServerProcess, plain: PlainAnswers) -> None:
    dspark.flush_cache()
    cold = arms.answer_all(dspark, arms.greedy_requests())
    assert {name: arms.essence(a) for name, a in cold.items()} == {
        name: arms.essence(a) for name, a in plain.greedy.items()
    }
    decoded = sum(a["meta_info"]["completion_tokens"] - 1 for a in cold.values())
    assert decoded / sum(a["meta_info"]["spec_verify_ct"] for a in cold.values()) >= MEAN_ACCEPT_LEN

    # The pool holds the last prompts only; backwards, those are still there, and the rest was evicted.
    backwards = dict(reversed(arms.greedy_requests().items()))
    warm = concurrently(lambda request: final_event(dspark, request), list(backwards.values()), arms.CONCURRENCY)
    for name, answer in zip(backwards, warm, strict=True):
        assert arms.essence(answer) == arms.essence(plain.greedy[name]), name
    assert cached(dict(zip(backwards, warm, strict=True))) > cached(cold) + 1000


def final_event(server: ServerProcess, request: pair.Request) -> dict[str, Any]:
    """Stream an answer; each event must extend the one before it."""
    last: dict[str, Any] = {"text": "", "output_ids": []}
    for event in server.stream(*request):
        assert event["text"].startswith(last["text"])
        assert event["output_ids"][: len(last["output_ids"])] == last["output_ids"]
        last = event
    return last


def test_prompts_came_in_chunks(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """Many prompts are longer than a chunk, and no prefill took more than one."""
    assert sum(len(prompt) > pair.PREFILL_CHUNK for prompt in pair.prompts()) > 50
    dspark.ask(*pair.generate(pair.prompts()[0]))
    sizes = [int(size) for size in re.findall(r"Prefill batch, .*?#new-token: (\d+)", dspark.log())]
    assert max(sizes) == pair.PREFILL_CHUNK


def test_streamed_chat_adds_up_to_the_whole_answer(dspark: ServerProcess, plain: PlainAnswers) -> None:
    for i in arms.LONG:
        events = list(dspark.stream(*pair.chat(pair.questions(pair.NUM_PROMPTS)[i])))
        text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        known = plain.greedy[f"prompt {i}"]
        assert text == known["text"]
        assert events[-1]["choices"][0]["finish_reason"] == known["meta_info"]["finish_reason"]["type"]
        assert len(events) > 3


def test_greedy_requests_beside_sampled_ones(dspark: ServerProcess, plain: PlainAnswers) -> None:
    sampled: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 1.3, "top_p": 0.8}, {"top_k": 1}]
    requests = {}
    for i, prompt in enumerate(pair.prompts()[:48]):
        requests[f"prompt {i}"] = pair.generate(prompt)
        requests[f"beside {i}"] = pair.generate(prompt, **{"temperature": 0.7, **sampled[i % 3]})
    answers = arms.answer_all(dspark, requests)
    for i in range(48):
        assert arms.essence(answers[f"prompt {i}"]) == arms.essence(plain.greedy[f"prompt {i}"])
        if i % 3 == 2:
            assert arms.essence(answers[f"beside {i}"]) == arms.essence(plain.greedy[f"prompt {i}"])
