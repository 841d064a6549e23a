"""Log-probabilities are the target's, one entry for each token of the answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import PlainAnswers
from tests.support import arms, pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server
TOLERANCE = 1e-4
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
