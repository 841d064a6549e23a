"""Answers against OpenAI's published schema, where SGLang's differ from it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dspark_sglang.http.strict import mend, mend_event

USAGE = {"prompt_tokens": 3, "prompt_tokens_details": None, "completion_tokens_details": None}


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def decoded(data: bytes) -> Any:
    return json.loads(data.removeprefix(b"data: "))


def test_a_whole_answer() -> None:
    choice = {"message": {"content": "a"}, "logprobs": {"content": []}}
    mended = mend({"choices": [choice], "usage": dict(USAGE)})
    assert mended["choices"][0]["message"] == {"content": "a", "refusal": None}
    assert mended["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    assert mended["usage"] == {"prompt_tokens": 3}


def test_what_is_there_stays() -> None:
    details = {"cached_tokens": 2}
    text = {"choices": [{"text": "a", "logprobs": None}], "usage": {**USAGE, "prompt_tokens_details": details}}
    assert mend(json.loads(json.dumps(text))) == {
        "choices": [{"text": "a", "logprobs": None}],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": details},
    }


def test_the_usage_of_a_stream() -> None:
    assert decoded(mend_event(event({"choices": [1]}))) == {"choices": [1], "usage": None}
    assert decoded(mend_event(event({"choices": [], "usage": USAGE}))) == {"choices": [], "usage": {"prompt_tokens": 3}}
    assert mend_event(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


@given(st.text() | st.sampled_from(['"usage":', ',"prompt_tokens_details":null', "}\n\n", '"usage":null}\n\n']))
def test_generated_text_is_never_touched(text: str) -> None:
    document = {"choices": [{"delta": {"content": text}}]}
    assert decoded(mend_event(event(document))) == {**document, "usage": None}
    full = {**document, "usage": USAGE}
    assert decoded(mend_event(event(full))) == {**document, "usage": {"prompt_tokens": 3}}
