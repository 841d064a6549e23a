"""Requests whose answers must not depend on speculation, and what of an answer is compared."""

from __future__ import annotations

from typing import Any

from tests.support.pair import CONTEXT_LENGTH, Request, chat, generate, prompts, questions
from tests.support.server import ServerProcess, concurrently

CONCURRENCY, BURST = 16, 40
# Prompts whose greedy answers are long enough to cut in the middle.
LONG = range(0, 60, 5)


def answer_all(server: ServerProcess, requests: dict[str, Request], workers: int = CONCURRENCY) -> dict[str, Any]:
    """Send named requests, at most ``workers`` at a time, and return the answers by name."""
    answers = concurrently(lambda request: server.ask(*request), list(requests.values()), workers)
    return dict(zip(requests, answers, strict=True))


def greedy_requests() -> dict[str, Request]:
    """Ask every prompt for 64 greedy tokens."""
    return {f"prompt {i}": generate(prompt) for i, prompt in enumerate(prompts())}


def stopping_requests(greedy: dict[str, Any]) -> dict[str, Request]:
    """End answers by stop strings and tokens out of the middle of ``greedy`` ones, run past ends, ask for several."""
    requests = {}
    for i in LONG:
        prompt, question, known = prompts()[i], questions(len(prompts()))[i], greedy[f"prompt {i}"]
        middle = len(known["text"]) // 2
        word, token = known["text"][middle : middle + 6], known["output_ids"][len(known["output_ids"]) // 3]
        requests[f"stop string {i}"] = generate(prompt, stop=["no such text", word])
        requests[f"stop string kept {i}"] = generate(prompt, stop=word, no_stop_trim=True)
        requests[f"stop token {i}"] = generate(prompt, stop_token_ids=[token])
        requests[f"chat stop {i}"] = chat(question, stop=[word])
        requests[f"end ignored {i}"] = generate(prompt, ignore_eos=True, max_new_tokens=90)
    requests["n"] = generate(prompts()[3], n=3)
    requests["chat n"] = chat(questions(len(prompts()))[4], n=2)
    return requests


def length_requests() -> dict[str, Request]:
    """Run into the context length from near and far, through prompts of many chunks; SGLang keeps seven tokens free."""
    flat = [token for prompt in prompts() for token in prompt]
    requests = {}
    for i, left in enumerate((7, 8, 9, 10, 11, 14, 17, 60)):
        prompt = flat[i * 100 :][: CONTEXT_LENGTH - left]
        requests[f"{left} tokens left"] = generate(prompt, ignore_eos=True, max_new_tokens=left)
    for i in (1, 2):
        requests[f"to the end {i}"] = generate(
            prompts()[i], ignore_eos=True, max_new_tokens=CONTEXT_LENGTH - len(prompts()[i])
        )
    requests["chat to the end"] = chat("What is 2 + 3?", ignore_eos=True, max_tokens=None)
    return requests


def logprob_requests() -> dict[str, Request]:
    """Ask for log-probabilities of prompts, answers, alternatives and given tokens."""
    requests = {}
    for i in LONG:
        path, payload = generate(prompts()[i], max_new_tokens=30)
        wanted = {"return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [5, 300], "logprob_start_len": 0}
        requests[f"generate {i}"] = Request(path, {**payload, **wanted})
        requests[f"chat {i}"] = chat(questions(len(prompts()))[i], logprobs=True, top_logprobs=2, max_tokens=30)
    return requests


def burst_requests() -> dict[str, Request]:
    """Ask for more long answers at once than the KV pool holds."""
    return {
        f"burst {i}": generate(prompt, ignore_eos=True, max_new_tokens=200)
        for i, prompt in enumerate(prompts()[:BURST])
    }


def essence(answer: Any) -> Any:
    """Reduce an answer of either endpoint to what speculation must not change."""
    if isinstance(answer, list):
        return [essence(one) for one in answer]
    if "choices" in answer:
        kept = ("index", "message", "finish_reason", "matched_stop")
        usage = {key: answer["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
        return [{key: choice[key] for key in kept} for choice in answer["choices"]], usage
    meta = {key: answer["meta_info"][key] for key in ("finish_reason", "prompt_tokens", "completion_tokens")}
    return answer["text"], answer["output_ids"], meta


def cut_in_a_block(answer: dict[str, Any]) -> bool:
    """Tell whether verification accepted more than the answer holds: it ended in the middle of a block."""
    meta = answer["meta_info"]
    # One token comes from prefill, and one more than its drafts from each verification.
    return bool(1 + meta["spec_verify_ct"] + meta["spec_num_correct_drafts"] > meta["completion_tokens"])
