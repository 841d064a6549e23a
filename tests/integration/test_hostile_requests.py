"""One request must not end the server: whatever a field holds, it is refused by name or served, and others go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import pair
from tests.support.processors import Misbehaves
from tests.support.server import ServerProcess, concurrently

pytestmark = pytest.mark.server
SCORED = {"return_logprob": True, "token_ids_logprob": [5]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair on its own: what these tests are about is that they could end it."""
    pytest.importorskip("sglang")
    folder = tmp_path_factory.mktemp("hostile")
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]
    with ServerProcess(flags, folder / "log", **pair.SERVER_ENVIRONMENT).serving() as started:
        yield started


def assert_refused(server: ServerProcess, path: str, payload: dict[str, Any], param: str | None) -> None:
    scheduler = server.scheduler().pid
    response = server.post(path, payload)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert error["code"] == "invalid_value"
    assert server.ask(*pair.generate(pair.prompts()[1], max_new_tokens=8))["meta_info"]["completion_tokens"] == 8
    assert server.scheduler().pid == scheduler


SAMPLING: list[tuple[str, dict[str, Any]]] = [
    ("min_new_tokens", {"min_new_tokens": 2**31, "max_new_tokens": None}),
    ("logit_bias", {"temperature": 1.0, "logit_bias": {"5": 1e300}}),
    ("logit_bias", {"temperature": 1.0, "logit_bias": {str(token): -1e300 for token in range(2048)}}),
    ("repetition_penalty", {"temperature": 1.0, "repetition_penalty": 1e-40}),
    ("stop_regex", {"stop_regex": "("}),
    ("stop_regex", {"stop_regex": ["(?<=a+)b"]}),
    ("stop_regex", {"stop_regex": "a{99999999999999999999}"}),
    ("n", {"n": 10**9}),
    ("n", {"n": 0}),
]
FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("top_logprobs_num", {"return_logprob": True, "top_logprobs_num": 60000}),
    ("top_logprobs_num", {"return_logprob": True, "top_logprobs_num": -5}),
    ("logprob_start_len", {"return_logprob": True, "logprob_start_len": -7}),
    ("token_ids_logprob", {"return_logprob": True, "token_ids_logprob": [10**6]}),
    ("token_indices_to_pool", {**SCORED, "token_indices_to_pool": [99999]}),
    ("multi_item_delimiter_indices", {**SCORED, "multi_item_delimiter_indices": [-1]}),
    ("positional_embed_overrides", {"positional_embed_overrides": {"a": 1}}),
    ("custom_logit_processor", {"custom_logit_processor": "nonsense"}),
    ("session_params", {"session_params": {"id": 5}}),
    ("session_params", {"session_params": {"foo": 1}}),
    ("rid", {"rid": ["a"]}),
]


@pytest.mark.parametrize(("param", "sampling"), SAMPLING)
def test_sampling_parameters(server: ServerProcess, param: str, sampling: dict[str, Any]) -> None:
    assert_refused(server, *pair.generate(pair.prompts()[0], **sampling), param)


@pytest.mark.parametrize(("param", "fields"), FIELDS)
def test_fields_of_the_native_api(server: ServerProcess, param: str, fields: dict[str, Any]) -> None:
    path, payload = pair.generate(pair.prompts()[0], max_new_tokens=0)
    assert_refused(server, path, {**payload, **fields}, param)


@pytest.mark.parametrize(
    ("param", "parameters"),
    [
        ("top_logprobs_num", {"logprobs": True, "top_logprobs": 60000}),
        ("min_new_tokens", {"min_tokens": 2**31, "max_tokens": None}),
        ("stop_regex", {"stop_regex": "("}),
        ("n", {"n": 10**9}),
    ],
)
def test_chat(server: ServerProcess, param: str, parameters: dict[str, Any]) -> None:
    assert_refused(server, *pair.chat("What is 2 + 3?", **parameters), param)


def test_what_means_the_same_as_a_bound_is_served(server: ServerProcess) -> None:
    """Beyond int32 and fp32 in the scheduler: every token allowed, and every allowed token equally likely."""
    plain = server.ask(*pair.generate(pair.prompts()[0], temperature=1.0, sampling_seed=3))
    for top_k in (2**31, 2**62):
        wide = server.ask(*pair.generate(pair.prompts()[0], temperature=1.0, sampling_seed=3, top_k=top_k))
        assert wide["output_ids"] == plain["output_ids"]
    for ends in ([99999999], [-1]):
        asked = pair.generate(pair.prompts()[0], min_new_tokens=8, max_new_tokens=8, stop_token_ids=ends)
        assert server.ask(*asked)["meta_info"]["completion_tokens"] == 8
    hot = server.ask(*pair.generate(pair.prompts()[0], temperature=1e300, regex="[a-z]{20,40}"))
    assert set(hot["text"]) <= set("abcdefghijklmnopqrstuvwxyz")
    assert hot["text"]
    scored = {"model": "default", "query": "What is 2 + 3?", "items": ["five", "six"], "label_token_ids": [5, 6]}
    assert len(server.ask("/v1/score", scored)["scores"]) == 2
    nested = {"a": {"b": {"c": 1}}, "d": [{"e": None}]}
    assert server.ask(*pair.generate(pair.prompts()[0], custom_params=nested))["text"]


def test_a_session_whose_requests_are_all_replaced(server: ServerProcess) -> None:
    session = server.ask("/open_session", {"capacity_of_str_len": 1000})
    path, payload = pair.generate(pair.prompts()[0], max_new_tokens=8)
    for _ in range(2):
        server.ask(path, {**payload, "session_params": {"id": session}})
    assert_refused(server, path, {**payload, "session_params": {"id": session, "replace": True}}, "session_params")
    assert server.post("/close_session", {"session_id": session}).status_code == 200


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_complete_grammar_wins_over_the_least_length(server: ServerProcess, temperature: int) -> None:
    """Otherwise no token is allowed: at the first token, in a block, and beside others."""
    end = pair.tokenizer().eos_token_id
    for ebnf, text in (('root ::= ""', ""), ('root ::= "x"', "x"), ('root ::= "' + "x y " * 8 + '"', "x y " * 8)):
        path, payload = pair.generate(pair.prompts()[0], temperature=temperature, ebnf=ebnf, min_new_tokens=60)
        answers = concurrently(
            lambda asked: server.ask(*asked), [(path, payload), pair.generate(pair.prompts()[1])] * 3, 6
        )
        for answer in answers[::2]:
            assert answer["text"] == text
            assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": end}


def test_labels_that_no_metric_has(server: ServerProcess) -> None:
    path, payload = pair.generate(pair.prompts()[0], max_new_tokens=4)
    for _ in range(2):
        assert server.ask(path, {**payload, "custom_labels": {"a": "b"}})["output_ids"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("how", ["raises", "shape", "nan", "infinite", "bans all"])
@pytest.mark.parametrize("after", [0, 5])
def test_a_processor_that_fails_ends_its_request_and_no_other(
    server: ServerProcess, how: str, after: int, temperature: float
) -> None:
    """At the first token, which a prefill draws, and later, beside requests that share it and that have none."""
    processor = Misbehaves.to_str()
    sampling = {"temperature": temperature, "max_new_tokens": 16, "ignore_eos": True}

    def asked(prompt: int, how: str, **settings: Any) -> tuple[str, dict[str, Any]]:
        path, payload = pair.generate(pair.prompts()[prompt], **{**sampling, **settings})
        payload["sampling_params"]["custom_params"] = {"how": how, "after": after}
        return path, {**payload, "custom_logit_processor": processor}

    scheduler = server.scheduler().pid
    greedy = {"temperature": 0.0}
    alone = [
        server.ask(*asked(1, "behaves", **greedy)),
        server.ask(*pair.generate(pair.prompts()[2], max_new_tokens=16)),
    ]
    requests = {
        "fails": asked(0, how),
        "shares": asked(1, "behaves", **greedy),
        "plain": pair.generate(pair.prompts()[2], max_new_tokens=16),
    }
    replies = concurrently(lambda name: server.post(*requests[name]), list(requests), 3)
    answers = dict(zip(requests, replies, strict=True))
    assert [answers[name].json()["output_ids"] for name in ("shares", "plain")] == [one["output_ids"] for one in alone]
    if how == "bans all":
        assert answers["fails"].status_code == 200
    else:
        assert answers["fails"].status_code == 400
        assert "custom_logit_processor" in answers["fails"].json()["error"]["message"]
    assert server.scheduler().pid == scheduler
