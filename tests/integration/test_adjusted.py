"""Settings that change the target's logits give the target's own text, alone and in mixed batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.integration.conftest import PlainAnswers
from tests.integration.test_sampled import ALPHA, NUM_PROMPTS, check, serve
from tests.support import arms, pair
from tests.support.exact_law import answer_logits, constrained_logits, penalised_logits
from tests.support.served import served_positions
from tests.support.server import ServerProcess
from tests.support.token_tests import Outcome, TokenTests

pytestmark = pytest.mark.server
# Far above what fp32 logits of two implementations differ by, far below the gap between tokens.
ROUNDING = 1e-4


def assert_right(answers: dict[str, Any], plain: PlainAnswers) -> None:
    """Compare with what the target alone answered; for penalties alone with its logits, penalised by definition."""
    requests = arms.adjusted_requests()
    wrong = []
    for name, answer in answers.items():
        if name in plain.adjusted:
            right = arms.essence(answer) == arms.essence(plain.adjusted[name])
        else:
            payload = requests[name].payload
            penalties = {k: v for k, v in payload["sampling_params"].items() if k.endswith("_penalty")}
            right = is_argmax(payload["input_ids"], answer["output_ids"], penalties)
        wrong += [] if right else [name]
    assert not wrong, wrong


def is_argmax(prompt: Sequence[int], answer: Sequence[int], penalties: dict[str, float]) -> bool:
    logits = penalised_logits(answer_logits(prompt, answer), answer, **penalties)
    return bool((logits[torch.arange(len(answer)), torch.tensor(answer)] >= logits.amax(1) - ROUNDING).all())


def test_three_hundred_requests_in_mixed_batches(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """In an order in which neighbours have different settings, with greedy and sampled requests between them."""
    own = arms.adjusted_requests()
    assert len(own) >= 300
    requests = dict(own)
    for i, prompt in enumerate(pair.prompts()[:60]):
        requests[f"sampled {i}"] = pair.generate(prompt, temperature=0.9, presence_penalty=0.3 * (i % 2))
        requests[f"prompt {i}"] = pair.generate(prompt)
    order = list(requests)
    random.Random(7).shuffle(order)
    answers = arms.answer_all(dspark, {name: requests[name] for name in order})
    assert_right({name: answers[name] for name in own}, plain)
    for i in range(60):
        assert arms.essence(answers[f"prompt {i}"]) == arms.essence(plain.greedy[f"prompt {i}"])
    # They were really drafted and verified several tokens at a time.
    emitted = sum(answers[name]["meta_info"]["completion_tokens"] - 1 for name in own)
    assert emitted / sum(answers[name]["meta_info"].get("spec_verify_ct", 0) for name in own) > 2


def test_alone(dspark: ServerProcess, plain: PlainAnswers) -> None:
    requests = {name: request for name, request in arms.adjusted_requests().items() if name.endswith(" 3")}
    assert_right(arms.answer_all(dspark, requests, 1), plain)


def test_the_argmax_check_sees_a_token_that_was_not_penalised(dspark: ServerProcess) -> None:
    prompt = pair.prompts()[5]
    answer = dspark.ask(*pair.generate(prompt))["output_ids"]
    assert is_argmax(prompt, answer, {})
    assert not is_argmax(prompt, answer, {"presence_penalty": 1.5})


def test_retracted_answers_go_on_with_their_penalties(dspark: ServerProcess) -> None:
    """More long answers than the KV pool holds: an answer is as if it had never been taken out."""
    penalties = {"frequency_penalty": 0.2, "presence_penalty": 0.3}
    settings: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 200, **penalties}
    burst = {f"{i}": pair.generate(prompt, **settings) for i, prompt in enumerate(pair.prompts()[: arms.BURST])}
    answers = arms.answer_all(dspark, burst, arms.BURST)
    assert any(answer["meta_info"]["num_retractions"] for answer in answers.values())
    for name, answer in answers.items():
        assert is_argmax(burst[name].payload["input_ids"], answer["output_ids"], penalties)


PENALTIES = {"frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.2}
PATTERN = "[a-z ]{350,900}"


def test_sampled_with_penalties(dspark: ServerProcess) -> None:
    served, control = outcomes(
        dspark, lambda logits, answer: penalised_logits(logits, answer, **PENALTIES), **PENALTIES
    )
    assert served.impossible == 0
    check(served)
    assert min(control.p_values.values()) < 1e-6


def test_sampled_with_least_length_and_bias(dspark: ServerProcess) -> None:
    least, bias, end = 40, {"17": 1.5, "202": -2.0, "224": 1.0, "15": -1.0}, pair.tokenizer().eos_token_id

    def adjusted(logits: Tensor, answer: Sequence[int]) -> Tensor:
        found = logits.clone()
        found[:least, end] = -torch.inf
        for token, value in bias.items():
            found[:, int(token)] += value
        return found

    served, control = outcomes(dspark, adjusted, min_new_tokens=least, logit_bias=bias)
    assert served.impossible == 0
    check(served)
    assert min(control.p_values.values()) < 1e-6


def test_sampled_in_a_grammar(dspark: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    served, control = outcomes(
        dspark, lambda logits, answer: constrained_logits(logits, answer, PATTERN), regex=PATTERN
    )
    assert served.impossible == 0
    check(served)
    assert min(control.p_values.values()) < 1e-6


def outcomes(server: ServerProcess, adjusted: Any, **settings: Any) -> tuple[Outcome, Outcome]:
    """Test what was served at temperature 1 against the adjusted laws, and as a control against the plain ones."""
    generator, tests, control = torch.Generator().manual_seed(6), TokenTests(seed=7), TokenTests(seed=7)
    prompts, answers = pair.prompts(NUM_PROMPTS), serve(server, **settings)
    for part in served_positions(prompts, answers, generator=generator, adjusted=adjusted):
        tests.add(part.tokens, part.laws, part.draft_laws)
        control.add(part.tokens, part.plain_laws, part.draft_laws)
    return tests.outcome(ALPHA), control.outcome(ALPHA)
