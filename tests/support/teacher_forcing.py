"""Whether greedy tokens are the target's own where two runs round differently: judged by the target alone, afterwards.

In half precision two servers may part ways at a near tie and then answer different texts, so texts are not compared.
What one has emitted is read by the other as a prompt, whose log-probabilities say how far each token is from the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.pair import Request


def judging_request(prompt: Sequence[int], answer: Sequence[int]) -> Request:
    """Ask for the log-probability of each token of an answer, and of the best token in its place."""
    return Request(
        "/generate",
        {
            "input_ids": [*prompt, *answer],
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "top_logprobs_num": 1,
            "logprob_start_len": len(prompt) - 1,
        },
    )


def shortfalls(reply: dict[str, Any], answer: Sequence[int]) -> list[float]:
    """Return by how much each token of the answer is less likely than the best in its place, in nats: 0 for the best.

    Raises
    ------
    ValueError
        If the reply does not judge this very answer.
    """
    meta = reply["meta_info"]
    own, best = (meta[key][-len(answer) :] for key in ("input_token_logprobs", "input_top_logprobs"))
    if [token for _, token, *_ in own] != list(answer) or len(best) != len(answer):
        raise ValueError("the log-probabilities are not of this answer's tokens")
    return [top[0][0] - logprob for (logprob, *_), top in zip(own, best, strict=True)]
