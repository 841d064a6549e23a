"""Requests whose answers must not depend on speculation, and what of an answer is compared."""

from __future__ import annotations

import json
from typing import Any

from tests.support.pair import CONTEXT_LENGTH, NUM_PROMPTS, Request, chat, generate, prompts, questions, tokenizer
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


def logit_processors() -> dict[str, tuple[str, dict[str, Any]]]:
    """Give custom processors as SGLang takes them: one knows its parameters only, one reads the answer."""
    from tests.support.processors import BanTokens, NoThreeInARow

    return {
        "ban": (BanTokens.to_str(), {"tokens": [20, 21, 22, 23, 24, 25]}),
        "no three in a row": (NoThreeInARow.to_str(), {"least": 0}),
    }


def adjusting_settings() -> dict[str, dict[str, Any]]:
    """Give every setting that changes the target's logits, alone and together."""
    digits = {
        str(token): bias for token, bias in zip(tokenizer().encode("0123456789"), (6, -100, 3.5, -7), strict=False)
    }
    end = [tokenizer().eos_token_id]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yz"]}}, "required": ["a"]}
    return {
        "frequency": {"frequency_penalty": 1.1},
        "frequency below 0": {"frequency_penalty": -0.4},
        "presence": {"presence_penalty": 1.5},
        "repetition": {"repetition_penalty": 1.15},
        "repetition below 1": {"repetition_penalty": 0.8},
        "all penalties": {"frequency_penalty": 0.3, "presence_penalty": 0.4, "repetition_penalty": 1.3},
        "least length": {"min_new_tokens": 50},
        "least length and stop tokens": {"min_new_tokens": 20, "stop_token_ids": tokenizer().encode("1 2 e a")},
        "bias": {"logit_bias": digits},
        "end banned": {"logit_bias": {str(end[0]): -100}},
        "end at once": {"logit_bias": {str(end[0]): 100}},
        "JSON": {"json_schema": json.dumps(schema)},
        "tiny JSON": {"json_schema": '{"type": "object", "additionalProperties": false}'},
        "regex": {"regex": "(the|a) [a-z]{3,9}( [a-z]{1,7}){2,5}[.!]"},
        "regex that ends": {"regex": "[0-9]{2}"},
        "EBNF": {"ebnf": 'root ::= "x" [0-9]+ ("," " "? [0-9]+)* ";"'},
        "JSON and a penalty": {"json_schema": json.dumps(schema), "repetition_penalty": 1.2},
        "regex and least length": {"regex": "[a-z ]{1,300}", "min_new_tokens": 12, "logit_bias": digits},
        "all": {"frequency_penalty": 0.5, "min_new_tokens": 30, "logit_bias": digits, "regex": "[a-z0-9 ]{20,400}"},
    }


def adjusted_requests() -> dict[str, Request]:
    """Ask prompts with every setting of `adjusting_settings`, and with custom processors."""
    requests = {}
    for s, (name, settings) in enumerate(adjusting_settings().items()):
        for i in range(14):
            requests[f"{name} {i}"] = generate(prompts()[(s * 14 + i) % NUM_PROMPTS], **settings)
    for name, (processor, parameters) in logit_processors().items():
        for i in range(17):
            path, payload = generate(prompts()[i * 3], custom_params=parameters)
            requests[f"{name} {i}"] = Request(path, {**payload, "custom_logit_processor": processor})
    return requests


def is_only_penalised(name: str) -> bool:
    """Tell whether a setting of `adjusting_settings` is penalties and nothing else.

    SGLang's own are no reference for these: with overlap they come one token late and count the prompt's last token,
    and several at once go wrong without it too.
    """
    settings = adjusting_settings().get(name, {"none": 0})
    return all(key.endswith("_penalty") for key in settings)


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
