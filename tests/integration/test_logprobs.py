"""Log-probabilities are the target's, one entry for each token of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor

from tests.integration.conftest import PlainAnswers
from tests.support import arms, pair
from tests.support.exact_law import answer_logits, constrained_logits, penalised_logits
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server
TOLERANCE, TOP = 1e-4, 3
FIELDS = tuple(f"{side}_{kind}_logprobs" for side in ("input", "output") for kind in ("token", "top", "token_ids"))


def same_entries(got: Any, want: Any) -> None:
    """Compare nested lists of (log-probability, token, text): tokens exactly, numbers to the tolerance."""
    if isinstance(want, list):
        assert isinstance(got, list)
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same_entries(one, other)
    elif isinstance(want, float):
        assert got == pytest.approx(want, abs=TOLERANCE)
    else:
        assert got == want


def test_generate(dspark: ServerProcess, plain: PlainAnswers) -> None:
    answers = arms.answer_all(dspark, arms.logprob_requests())
    for i in arms.LONG:
        got, want = answers[f"generate {i}"], plain.logprobs[f"generate {i}"]
        assert arms.essence(got) == arms.essence(want)
        for field in FIELDS:
            same_entries(got["meta_info"][field], want["meta_info"][field])
        entries = got["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in entries] == got["output_ids"]
        for (value, token, _), top in zip(entries, got["meta_info"]["output_top_logprobs"], strict=True):
            # A greedy token is its own best alternative.
            assert (top[0][0], top[0][1]) == (value, token)
            assert len(top) == 3


def test_chat(dspark: ServerProcess, plain: PlainAnswers) -> None:
    answers = arms.answer_all(dspark, {n: r for n, r in arms.logprob_requests().items() if n.startswith("chat")})
    for name, got in answers.items():
        want = plain.logprobs[name]
        assert arms.essence(got) == arms.essence(want)
        mine, theirs = (a["choices"][0]["logprobs"]["content"] for a in (got, want))
        assert len(mine) == got["usage"]["completion_tokens"]
        for one, other in zip(mine, theirs, strict=True):
            assert one["token"] == other["token"]
            assert one["logprob"] == pytest.approx(other["logprob"], abs=TOLERANCE)
            assert [t["token"] for t in one["top_logprobs"]] == [t["token"] for t in other["top_logprobs"]]


def test_sampled_tokens_have_their_own_logprobs(dspark: ServerProcess) -> None:
    """Scoring the served answer as a prompt gives the same numbers."""
    for i in arms.LONG:
        prompt = pair.prompts()[i]
        path, payload = pair.generate(prompt, temperature=1.0, max_new_tokens=40)
        answer = dspark.ask(path, {**payload, "return_logprob": True})
        served = answer["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in served] == answer["output_ids"]
        path, payload = pair.generate([*prompt, *answer["output_ids"]], max_new_tokens=1)
        again = dspark.ask(path, {**payload, "return_logprob": True, "logprob_start_len": len(prompt) - 1})
        scored = again["meta_info"]["input_token_logprobs"][1:]
        same_entries([list(e) for e in served], [list(e) for e in scored])


def assert_of_the_law(answer: dict[str, Any], prompt: Sequence[int], adjusted: Callable[..., Tensor]) -> None:
    """Compare every token's log-probability, and the best alternatives, with the law that it was chosen by."""
    tokens = answer["output_ids"]
    law = adjusted(answer_logits(prompt, tokens), tokens).double().log_softmax(-1)
    entries, tops = (answer["meta_info"][f"output_{kind}_logprobs"] for kind in ("token", "top"))
    assert [token for _, token, _ in entries] == tokens
    for row, (value, token, _), top in zip(law, entries, tops, strict=True):
        assert value == pytest.approx(float(row[token]), abs=TOLERANCE)
        best = row.topk(TOP).values
        # Where less than that is allowed, what is told of the others is the lowest number that there is.
        allowed = int(best.isfinite().sum())
        assert [one[0] for one in top[:allowed]] == pytest.approx(best[:allowed].tolist(), abs=TOLERANCE)


def with_logprobs(prompt: list[int], **settings: Any) -> pair.Request:
    path, payload = pair.generate(prompt, **settings)
    return pair.Request(path, {**payload, "return_logprob": True, "top_logprobs_num": TOP})


def test_under_penalties(dspark: ServerProcess) -> None:
    penalties = {"frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.2}
    requests = {f"{i}": with_logprobs(pair.prompts()[i], **penalties) for i in arms.LONG}
    for i, answer in arms.answer_all(dspark, requests).items():
        assert_of_the_law(
            answer, pair.prompts()[int(i)], lambda logits, tokens: penalised_logits(logits, tokens, **penalties)
        )


def test_in_a_grammar(dspark: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    pattern = "(the|a) [a-z ]{20,60}[.!]"
    requests = {f"{i}": with_logprobs(pair.prompts()[i], regex=pattern) for i in arms.LONG}
    for i, answer in arms.answer_all(dspark, requests).items():
        assert_of_the_law(
            answer, pair.prompts()[int(i)], lambda logits, tokens: constrained_logits(logits, tokens, pattern)
        )


def test_of_answers_that_were_taken_out_and_resumed(dspark: ServerProcess) -> None:
    requests = {
        f"{i}": with_logprobs(prompt, ignore_eos=True, max_new_tokens=200)
        for i, prompt in enumerate(pair.prompts()[: arms.BURST])
    }
    answers = arms.answer_all(dspark, requests, arms.BURST)
    retracted = [i for i, answer in answers.items() if answer["meta_info"]["num_retractions"]]
    assert retracted
    for i in retracted:
        assert_of_the_law(answers[i], pair.prompts()[int(i)], lambda logits, _: logits)


def test_of_greedy_and_sampled_first_tokens_in_one_prefill(dspark: ServerProcess) -> None:
    """What the sampler is left of a greedy row beside a sampled one is not what its log-probabilities are of."""
    prompts = [prompt[-8:] for prompt in pair.prompts()[:4]]
    settings = [{"temperature": i % 2, "top_k": 5, "max_new_tokens": 6, "ignore_eos": True} for i in range(4)]
    asked = {"input_ids": prompts, "sampling_params": settings, "return_logprob": True, "top_logprobs_num": TOP}
    dspark.flush_cache()
    for prompt, answer in zip(prompts, dspark.ask("/generate", asked), strict=True):
        assert_of_the_law(answer, prompt, lambda logits, _: logits)
