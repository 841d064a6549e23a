"""A seed repeats an answer, whatever is drafted, verified or served beside it; over seeds the law is the target's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.integration.test_policies import DEFAULT
from tests.integration.test_sampled import ALPHA
from tests.support import arms, joint_law, pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server


def seeded(count: int) -> dict[str, pair.Request]:
    """Ask prompts with seeds, some of them with filters, penalties or a grammar besides."""
    more: list[dict[str, Any]] = [
        {}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.05}, {"repetition_penalty": 1.2}, {"regex": "[a-z ]{1,300}"},
    ]  # fmt: skip
    return {
        f"{i}": pair.generate(prompt, temperature=1.0, sampling_seed=1000 + i, **more[i % len(more)])
        for i, prompt in enumerate(pair.prompts()[:count])
    }


def outputs(answers: dict[str, Any]) -> dict[str, Any]:
    return {name: answer["output_ids"] for name, answer in answers.items()}


def test_answers_repeat_alone_in_batches_and_under_every_policy(dspark: ServerProcess) -> None:
    requests = seeded(48)
    first = outputs(arms.answer_all(dspark, requests))
    names = list(requests)
    random.Random(3).shuffle(names)
    assert outputs(arms.answer_all(dspark, {name: requests[name] for name in names}, 5)) == first
    try:
        for policy in ({"policy": "static", "verify_drafts": 2}, {"policy": "static", "verify_drafts": 0}):
            assert dspark.post("/dspark/policy", policy).status_code == 200
            few = {name: requests[name] for name in names[:16]}
            assert outputs(arms.answer_all(dspark, few, 4)) == {name: first[name] for name in few}
    finally:
        assert dspark.post("/dspark/policy", DEFAULT).status_code == 200


def test_other_seeds_give_other_answers(dspark: ServerProcess) -> None:
    prompt = pair.prompts()[8]
    asked = {f"{s}": pair.generate(prompt, temperature=1.0, sampling_seed=s) for s in (0, 1, -1, 2**63 - 1, -(2**63))}
    answers = outputs(arms.answer_all(dspark, asked))
    assert len({tuple(answer) for answer in answers.values()}) == len(asked)


def test_chat_takes_a_seed_too(dspark: ServerProcess) -> None:
    request = pair.chat("What is 2 + 3?", temperature=1.2, seed=11)
    first, second = dspark.ask(*request), dspark.ask(*request)
    assert first["choices"][0]["message"] == second["choices"][0]["message"]


def test_several_answers_with_a_seed_differ_and_repeat(dspark: ServerProcess) -> None:
    """The first is the answer to one; the batch around them, and whether they are streamed, changes nothing."""
    prompt, seed = pair.prompts()[8], {"temperature": 1.0, "sampling_seed": 77}
    alone = dspark.ask(*pair.generate(prompt, **seed))["output_ids"]
    several = [answer["output_ids"] for answer in dspark.ask(*pair.generate(prompt, n=4, **seed))]
    assert several[0] == alone
    assert len({tuple(answer) for answer in several}) == 4
    arms.answer_all(dspark, seeded(6))
    assert [answer["output_ids"] for answer in dspark.ask(*pair.generate(prompt, n=4, **seed))] == several
    path, payload = pair.generate(prompt, n=4, **seed)
    batch = dspark.ask(path, {**payload, "input_ids": [prompt, pair.prompts()[9]]})
    assert [answer["output_ids"] for answer in batch[:4]] == several
    streamed = {event["index"]: event["output_ids"] for event in dspark.stream(path, payload)}
    assert [streamed[i] for i in range(4)] == several
    chosen = dspark.ask(*pair.chat("What is 2 + 3?", temperature=1.2, seed=11, n=3))["choices"]
    assert len({choice["message"]["content"] for choice in chosen}) == 3


def test_logprobs_of_a_seeded_answer_are_the_targets(dspark: ServerProcess) -> None:
    path, payload = pair.generate(pair.prompts()[2], temperature=1.0, sampling_seed=5, max_new_tokens=12)
    answer = dspark.ask(path, {**payload, "return_logprob": True})
    given = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    scored = {"input_ids": [*payload["input_ids"], *answer["output_ids"]], "return_logprob": True}
    scored |= {"logprob_start_len": len(payload["input_ids"]) - 1, "sampling_params": {"max_new_tokens": 0}}
    again = dspark.ask(path, scored)["meta_info"]["input_token_logprobs"][1:]
    np.testing.assert_allclose(given, [entry[0] for entry in again][: len(given)], atol=1e-4)


def test_over_seeds_first_tokens_have_the_joint_law(dspark: ServerProcess) -> None:
    prompt = pair.prompts()[9]
    requests = {
        f"{s}": pair.generate(
            prompt, temperature=1.0, max_new_tokens=joint_law.TOKENS, ignore_eos=True, sampling_seed=s
        )
        for s in range(joint_law.SAMPLES)
    }
    result = joint_law.check(prompt, list(outputs(arms.answer_all(dspark, requests, 40)).values()), ALPHA)
    assert result.dof >= 4
    assert result.power > 0.9
    assert result.p_value > ALPHA
