"""Where an answer ends does not depend on speculation, also in the middle of an accepted block."""

from __future__ import annotations

import pytest

from tests.integration.conftest import PlainAnswers
from tests.support import arms, pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server


def test_stop_strings_tokens_ignored_ends_and_several_answers(dspark: ServerProcess, plain: PlainAnswers) -> None:
    requests = arms.stopping_requests(plain.greedy)
    answers = arms.answer_all(dspark, requests)
    for name, answer in answers.items():
        assert arms.essence(answer) == arms.essence(plain.stopping[name]), name
    assert answers["stop string 0"]["meta_info"]["finish_reason"]["type"] == "stop"
    for kind in ("stop string", "stop token"):
        assert any(arms.cut_in_a_block(answers[f"{kind} {i}"]) for i in arms.LONG)
    assert len(answers["n"]) == 3
    assert len(answers["chat n"]["choices"]) == 2


def test_the_end_of_a_turn_in_a_block(dspark: ServerProcess, plain: PlainAnswers) -> None:
    ended = [n for n, a in plain.greedy.items() if a["meta_info"]["finish_reason"]["type"] == "stop"][:20]
    requests = arms.greedy_requests()
    answers = arms.answer_all(dspark, {name: requests[name] for name in ended})
    assert len(ended) == 20
    assert any(arms.cut_in_a_block(answer) for answer in answers.values())
    for name, answer in answers.items():
        assert arms.essence(answer) == arms.essence(plain.greedy[name]), name


@pytest.mark.parametrize("policy", ["adaptive", "static"])
def test_every_small_max_tokens(dspark: ServerProcess, plain: PlainAnswers, policy: str) -> None:
    """Whole blocks are cut where the answer ends; by default no more is verified than it can still use."""
    requests = {
        f"{i} {count}": pair.generate(pair.prompts()[i], max_new_tokens=count)
        for i in (0, 1, 2)
        for count in range(1, 18)
    }
    dspark.ask("/dspark/policy", {"policy": policy})
    try:
        answers = arms.answer_all(dspark, requests)
    finally:
        dspark.ask("/dspark/policy", {"policy": "adaptive"})
    for name, answer in answers.items():
        i, count = map(int, name.split())
        assert answer["output_ids"] == plain.greedy[f"prompt {i}"]["output_ids"][:count], name
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": count}
    verified = [answer for answer in answers.values() if "spec_verify_ct" in answer["meta_info"]]
    assert verified
    assert any(arms.cut_in_a_block(answer) for answer in verified) == (policy == "static")


def test_the_context_length_is_an_end_like_any_other(dspark: ServerProcess, plain: PlainAnswers) -> None:
    answers = arms.answer_all(dspark, arms.length_requests())
    for name, answer in answers.items():
        assert arms.essence(answer) == arms.essence(plain.lengths[name]), name
    assert answers["chat to the end"]["usage"]["total_tokens"] >= pair.CONTEXT_LENGTH - 2
    assert answers["chat to the end"]["choices"][0]["finish_reason"] == "length"
