"""SGLang's error bodies and what becomes of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dspark_sglang.http.classify import CAUSES, classify
from dspark_sglang.http.errors import MESSAGE_LIMIT, ApiError

SENTENCES = {
    "The request queue is full.": (503, 429, "queue_full", True),
    "The request is aborted by a higher priority request.": (503, 429, "preempted", True),
    "Request waiting timeout reached.": (503, 503, "queue_timeout", True),
    "Request running timeout reached.": (503, 503, "request_timeout", False),
    "Using priority is disabled for this server. Please send a new request without a priority.": (
        *(503, 400, "unsupported_parameter", False),
    ),
    "The input (9 tokens) is longer than the model's context length (8 tokens).": (
        *(400, 400, "context_length_exceeded", False),
    ),
    "Requested token count exceeds the model's maximum context length of 8 tokens.": (
        *(400, 400, "context_length_exceeded", False),
    ),
    "Input length (9 tokens) exceeds the maximum allowed length (8 tokens).": (
        *(400, 400, "context_length_exceeded", False),
    ),
    "Request prompt exceeds the KV memory budget: input_len=9.": (400, 400, "context_length_exceeded", False),
    "Unsupported Media Type: Only 'application/json' is allowed": (400, 400, "unsupported_content_type", False),
}


def shapes(message: str, status: int) -> list[Any]:
    """Give every shape that SGLang has for an error."""
    return [
        {"object": "error", "message": message, "type": "x", "param": None, "code": status},
        {"error": {"message": message, "code": status}},
        {"error": message},
        {"detail": message},
        message,
    ]


@pytest.mark.parametrize("message", SENTENCES)
def test_causes(message: str) -> None:
    given, status, code, retried = SENTENCES[message]
    for body in shapes(message, given):
        error = classify(given, body, "POST", "/v1/chat/completions", "id")
        assert (error.status, error.code, error.message) == (status, code, message)
        assert ("retry-after" in error.headers) == retried


def test_a_request_that_ran_out_of_time_is_not_sent_again() -> None:
    """openai-python sends everything from 500 on again, unless this header says otherwise."""
    error = classify(503, "Request running timeout reached.", "POST", "/generate", "id")
    assert error.headers == {"x-should-retry": "false"}


def test_every_cause_is_a_sentence_of_the_installed_sglang() -> None:
    """A release that words one differently would be answered as before it was told apart."""
    found = find_spec("sglang")
    if found is None or found.origin is None:
        pytest.skip("no SGLang is installed")
    folder = Path(found.origin).parent / "srt"
    names = ("scheduler.py", "tokenizer_manager.py", "utils.py")
    text = (folder / "entrypoints" / "http_server.py").read_text()
    text += "".join((folder / "managers" / name).read_text() for name in names)
    # Sentences are put together from pieces over several lines, and hold formatted numbers.
    joined = " ".join(text.replace('"\n', "").replace('f"', "").split())
    joined = joined.replace("{len(req.origin_input_ids)}", "9")
    for cause in CAUSES:
        assert cause.pattern.search(joined), cause.pattern.pattern


@pytest.mark.parametrize(
    ("path", "param"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/generate", None)]
)
def test_the_field_that_is_too_long(path: str, param: str | None) -> None:
    message = "The input (9 tokens) is longer than the model's context length (8 tokens)."
    assert classify(400, message, "POST", path, "id").param == param


def test_parameters_are_named() -> None:
    refused = classify(400, "regex, seed: not supported with DSpark speculative decoding yet", "POST", "/v1/x", "id")
    assert (refused.code, refused.param) == ("unsupported_parameter", "regex")
    invalid = classify(400, "top_p must be in (0, 1], got 3.", "POST", "/v1/x", "id")
    assert (invalid.code, invalid.param) == ("invalid_value", "top_p")
    assert classify(400, "This must not be read as a field", "POST", "/v1/x", "id").param is None


@pytest.mark.parametrize("body", [None, "", {}, [], 3, {"error": None}, {"error": {"message": None}}, {"detail": [1]}])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 418, 422, 500, 501, 503])
def test_a_body_that_says_nothing(status: int, body: Any) -> None:
    error = classify(status, body, "GET", "/v1/x", "the-id")
    assert error.status == (400 if status == 422 else status)
    assert error.message
    assert error.code is None or not error.code.isdecimal()


def test_a_message_has_a_bound() -> None:
    assert len(ApiError(400, "x" * 10**6).message) < MESSAGE_LIMIT + 10
