"""Strict clients against a real server, and requests made up from its published schema."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import pair
from tests.support.server import ServerProcess, server_environment

pytestmark = pytest.mark.server
SUITE_S = 240
# Routes of clients; those of operators stop and change the server.
V1 = "chat/completions|completions|models|tokenize|detokenize|embeddings|score|rerank|classify|loads"
ROUTES = f"^/(v1/({V1})|generate$|dspark)"
QUESTION: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "What is 2 + 3?"}],
    "max_tokens": 8,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair; at the end nothing may run or have failed inside."""
    pytest.importorskip("sglang")
    folder = tmp_path_factory.mktemp("suites")
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT)]
    with ServerProcess(
        [*flags, "--step-time-profile", str(folder / "steps.json")], folder / "log"
    ).serving() as started:
        yield started


def test_schemathesis_finds_no_fault_of_the_server(server: ServerProcess, tmp_path: Path) -> None:
    """Whatever the published schema allows, and much that it does not, is answered below 500 and in time."""
    options = ["--checks", "not_a_server_error", "--phases", "fuzzing", "--max-examples", "15", "--seed", "5"]
    options += ["--request-timeout", "60", "--continue-on-failure", "--workers", "4", "--include-path-regex", ROUTES]
    # How long it takes to make up a request says nothing of the server.
    options += ["--suppress-health-check", "all"]
    code = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    command = [sys.executable, "-c", code, "run", f"{server.url}/openapi.json", *options]
    # It may leave files.
    done = subprocess.run(
        command, env=server_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=SUITE_S
    )
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    """Give OpenAI's own client, which here raises on any answer that is not of its types."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


@pytest.mark.parametrize("changes", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}, {"stop": ["left"]}])
def test_openai_client(client: Any, changes: dict[str, Any]) -> None:
    whole = client.chat.completions.create(**QUESTION, **changes)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    texts, finished, usage = dict.fromkeys(range(len(whole.choices)), ""), [], None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(**QUESTION, **changes, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finished += [choice.index] if choice.finish_reason else []
        usage = chunk.usage or usage
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert sorted(finished) == sorted(texts)
    assert usage == whole.usage
    if "logprobs" in changes:
        assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens


def test_openai_client_completions_and_models(client: Any) -> None:
    asked = {"model": "default", "prompt": "2 + 3 =", "max_tokens": 6, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    # Its type of a streamed text has no null finish_reason, which OpenAI itself sends until the end.
    lenient = type(client)(base_url=client.base_url, api_key="x")
    assert "".join(chunk.choices[0].text for chunk in lenient.completions.create(**asked, stream=True)) == text
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id


def test_openai_client_errors(client: Any) -> None:
    import openai

    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**{**QUESTION, "model": "gpt-4"})
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert unknown.value.request_id
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(**{**QUESTION, "messages": [{"role": "user", "content": "word " * 3000}]})
    assert (long.value.code, long.value.type) == ("context_length_exceeded", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as invalid:
        list(client.chat.completions.create(**{**QUESTION, "temperature": 99, "top_p": 9}, stream=True))
    assert invalid.value.code == "invalid_value"
