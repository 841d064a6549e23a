"""Answers from an endpoint: every prompt once, nothing lost when it is interrupted, failures named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgl_dspark.data import endpoint
from sgl_dspark.data.endpoint import Asking, generate
from sgl_dspark.data.prompts import PromptRecord
from sgl_dspark.data.responses import ResponseFile, read_exchanges
from sgl_dspark.errors import ConfigError, DataError
from tests.support.plain_chat_server import PlainChatServer, completion

PROMPTS = [PromptRecord.of((f"question {i}",), "kind") for i in range(7)]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_FIRST_WAIT_S", 0.0)


def quiet(line: str) -> None:
    """Take a log line and drop it."""


def echo(number: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, completion("answer to " + body["messages"][-1]["content"])


def test_every_prompt_is_answered_once_and_written_down(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    with PlainChatServer(echo) as server, ResponseFile(out) as sink:
        sampling = {"max_tokens": 9}
        asking = Asking(server.url, temperatures=(0.0, 0.7), sampling=sampling, api_key="secret", concurrency=3)
        outcome = generate(PROMPTS, asking, sink, quiet)
        assert (outcome.written, outcome.tokens, outcome.failed) == (7, 21, {})
    found = {e.id: e for e in read_exchanges(out)}
    assert found.keys() == {p.id for p in PROMPTS}
    for index, prompt in enumerate(PROMPTS):
        exchange = found[prompt.id]
        assert exchange.messages == [
            {"role": "user", "content": f"question {index}"},
            {"role": "assistant", "content": f"answer to question {index}"},
        ]
        assert exchange.sampling == {"max_tokens": 9, "temperature": (0.0, 0.7)[index % 2]}
        assert (exchange.kind, exchange.model, exchange.finish_reasons) == ("kind", "the-model", ["stop"])
    assert all(headers["Authorization"] == "Bearer secret" for headers in server.headers)


def test_a_second_run_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    with PlainChatServer(echo) as server:
        with ResponseFile(out) as sink:
            generate(PROMPTS[:4], Asking(server.url), sink, quiet)
        whole = out.read_bytes()
        # A kill leaves half a line behind.
        out.write_bytes(whole + b'{"id": "torn", "mess')
        with ResponseFile(out) as sink:
            assert sink.done == {p.id for p in PROMPTS[:4]}
            generate(PROMPTS, Asking(server.url), sink, quiet)
    assert len(server.bodies) == 7
    assert out.read_bytes().startswith(whole)
    assert [e.id for e in read_exchanges(out)][:4] == [json.loads(line)["id"] for line in whole.splitlines()]
    assert {e.id for e in read_exchanges(out)} == {p.id for p in PROMPTS}


def test_further_turns_follow_the_targets_own_answers(tmp_path: Path) -> None:
    prompt = PromptRecord.of(("first", "second", "third"))

    def answer(number: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, completion(f"reply {number}", "stop" if number == 0 else "length")

    with PlainChatServer(answer) as server, ResponseFile(tmp_path / "a.jsonl") as sink:
        generate([prompt], Asking(server.url), sink, quiet)
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["first", "reply 0", "second"]
    (found,) = read_exchanges(tmp_path / "a.jsonl")
    # The second reply was cut off, so nobody answered it.
    assert [m["content"] for m in found.messages] == ["first", "reply 0", "second", "reply 1"]
    assert found.finish_reasons == ["stop", "length"]
    assert found.completion_tokens == 6


def test_trouble_on_the_servers_side_is_retried_and_a_refusal_is_not(tmp_path: Path) -> None:
    def answer(number: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text = body["messages"][0]["content"]
        if text == "question 0" and number < 2:
            return 503, {"error": "busy"}
        if text == "question 1":
            return 400, {"error": "max_tokens is too large"}
        if text == "question 2":
            return 200, completion("  ")
        return echo(number, body)

    with PlainChatServer(answer) as server, ResponseFile(tmp_path / "a.jsonl") as sink:
        outcome = generate(PROMPTS[:4], Asking(server.url, concurrency=1), sink, quiet)
    assert outcome.written == 2
    assert set(outcome.failed) == {PROMPTS[1].id, PROMPTS[2].id}
    assert "max_tokens is too large" in outcome.failed[PROMPTS[1].id]
    assert "nothing" in outcome.failed[PROMPTS[2].id]
    asked = [body["messages"][0]["content"] for body in server.bodies]
    assert asked.count("question 0") == 3
    assert asked.count("question 1") == 1


def test_an_endpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    for url, message in (("http://127.0.0.1:9", "is the server up"), ("127.0.0.1:9", "must start with http")):
        with ResponseFile(tmp_path / "a.jsonl") as sink, pytest.raises(DataError, match=message):
            generate(PROMPTS, Asking(url), sink, quiet)
    # A run without an answer leaves no file behind.
    assert not (tmp_path / "a.jsonl").exists()


def test_answers_to_other_options_are_told_apart(tmp_path: Path) -> None:
    with PlainChatServer(echo) as server:
        asking = Asking(server.url, temperatures=(0.0, 1.0), sampling={"max_tokens": 9})
        with ResponseFile(tmp_path / "a.jsonl") as sink:
            generate(PROMPTS, asking, sink, quiet)
    again = ResponseFile(tmp_path / "a.jsonl")
    assert all(asking.would_ask(sampling) for sampling in again.samplings)
    for temperatures, tokens in (((0.5,), 9), ((0.0, 1.0), 8), ((), 9)):
        other = Asking(server.url, temperatures=temperatures, sampling={"max_tokens": tokens})
        assert not all(other.would_ask(sampling) for sampling in again.samplings)


@pytest.mark.parametrize("field", [{"stop": ["\n"]}, {"stop_token_ids": [7]}, {"stop_regex": "a"}, {"stop": "a"}])
def test_ends_of_our_own_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"--sampling: {next(iter(field))} .*end token"):
        Asking("http://127.0.0.1:9", sampling={"max_tokens": 9, **field})
    assert Asking("http://127.0.0.1:9", sampling={next(iter(field)): None}).sampling


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"turns": ["x"]}\n')
    with pytest.raises(DataError, match="line 1"):
        ResponseFile(path)
