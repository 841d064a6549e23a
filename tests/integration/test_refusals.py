"""What is not exact under DSpark is answered with HTTP 400 and its name, on every endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server
CHAT: dict[str, dict[str, Any]] = {
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "min_tokens": {"min_tokens": 3},
    "logit_bias": {"logit_bias": {"5": 2}},
    "response_format": {"response_format": {"type": "json_object"}},
    "regex": {"regex": "a+"},
    "ebnf": {"ebnf": 'root ::= "a"'},
    "seed": {"seed": 4, "temperature": 0.5},
}
GENERATE: dict[str, dict[str, Any]] = {
    "frequency_penalty": {"frequency_penalty": 0.5},
    "min_new_tokens": {"min_new_tokens": 3},
    "json_schema": {"json_schema": '{"type": "object"}'},
    "logit_bias": {"logit_bias": {"5": 2}},
    "seed": {"sampling_seed": 4, "temperature": 0.5},
}


def message(body: dict[str, Any]) -> str:
    return str(body.get("message") or body["error"]["message"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CHAT)
def test_chat(dspark: ServerProcess, name: str, stream: bool) -> None:
    path, payload = pair.chat("What is 2 + 3?", **CHAT[name])
    response = dspark.post(path, {**payload, "stream": stream})
    assert response.status_code == 400, response.text
    assert name in message(response.json())
    assert "not supported with DSpark" in message(response.json())


@pytest.mark.parametrize("name", GENERATE)
def test_generate(dspark: ServerProcess, name: str) -> None:
    path, payload = pair.generate(pair.prompts()[0], **GENERATE[name])
    response = dspark.post(path, payload)
    assert response.status_code == 400, response.text
    assert name in message(response.json())
    streamed = dspark.post(path, {**payload, "stream": True})
    assert streamed.status_code == 400, streamed.text
    assert name in message(streamed.json())


def test_several_at_once_are_all_named(dspark: ServerProcess) -> None:
    response = dspark.post(*pair.chat("What is 2 + 3?", frequency_penalty=0.5, logit_bias={"5": 2}))
    assert response.status_code == 400
    assert message(response.json()).startswith("frequency_penalty, logit_bias: ")


def test_neutral_values_are_served(dspark: ServerProcess) -> None:
    neutral = {"frequency_penalty": 0, "presence_penalty": 0, "n": 1, "response_format": {"type": "text"}, "seed": None}
    assert dspark.ask(*pair.chat("What is 2 + 3?", **neutral))["choices"][0]["message"]["content"]
