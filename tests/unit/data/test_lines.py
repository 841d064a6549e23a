"""Files of JSON lines: any character may stand in a text, and what is no text is refused by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_dspark.data import endpoint
from sgl_dspark.data.endpoint import Asking, generate
from sgl_dspark.data.prompt_set import load_prompts
from sgl_dspark.data.prompts import PromptRecord, read_prompts, write_prompts
from sgl_dspark.data.responses import Exchange, ResponseFile, read_exchanges
from sgl_dspark.errors import DataError
from sgl_dspark.simulator.traces import TraceOptions, load_trace
from sgl_dspark.training.journal import read_metrics
from tests.support.plain_chat_server import PlainChatServer, completion

# Ends of lines to str.splitlines, and parts of a text to everybody else.
ENDS = "a text \u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e"
HALF = "\ud83d"


def _exchange(text: str, name: str = "id") -> Exchange:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return Exchange(name, "", messages, ["stop"], {"note": text})


def quiet(line: str) -> None:
    """Take a log line and drop it."""


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_text_survives_the_way_through_a_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("lines")
    with ResponseFile(folder / "answers.jsonl") as sink:
        sink.add(_exchange(text))
        sink.add(_exchange("behind it", "other"))
    assert ResponseFile(folder / "answers.jsonl").done == {"id", "other"}
    assert read_exchanges(folder / "answers.jsonl")[0] == _exchange(text)
    if text.strip():
        records = [PromptRecord.of((text,), "k"), PromptRecord.of(("behind it ", text), "k")]
        write_prompts(folder / "prompts.jsonl", records)
        assert read_prompts(folder / "prompts.jsonl") == records
        assert load_prompts(folder / "prompts.jsonl")[0].messages == ({"role": "user", "content": text},)


def test_files_of_earlier_releases_open_again(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    raw = {"id": "a", "kind": "", "messages": _exchange(ENDS).messages, "finish_reasons": ["stop"]}
    path.write_text(json.dumps(raw, ensure_ascii=False) + "\n", encoding="utf-8")
    with ResponseFile(path) as sink:
        assert sink.done == {"a"}
        sink.add(_exchange("new", "b"))
    assert [e.messages[1]["content"] for e in read_exchanges(path)] == [ENDS, "new"]
    path.write_text(json.dumps({"turns": [ENDS]}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_prompts(path)[0].turns == (ENDS,)
    assert load_prompts(path)[0].messages[0]["content"] == ENDS
    path.write_text(json.dumps({"name": ENDS}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_metrics(path) == [{"name": ENDS}]


def test_a_trace_may_hold_any_text_beside_its_numbers(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 3, "output_length": 2, "note": ENDS}
    (tmp_path / "trace.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    found = load_trace(tmp_path / "trace.jsonl", TraceOptions(), np.random.default_rng(0))
    assert found.prompt_tok.tolist() == [3]


def test_an_answer_that_is_no_text_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_FIRST_WAIT_S", 0.0)
    prompts = [PromptRecord.of((f"question {i}",)) for i in range(3)]

    def answer(number: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, completion(HALF if number == 0 else ENDS)

    with PlainChatServer(answer) as server, ResponseFile(tmp_path / "a.jsonl") as sink:
        outcome = generate(prompts, Asking(server.url, concurrency=1), sink, quiet)
    assert outcome.written == 2
    assert "half a character" in outcome.failed[prompts[0].id]
    assert len(read_exchanges(tmp_path / "a.jsonl")) == 2


def test_a_prompt_that_is_no_text_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    path.write_text('{"turns": ["whole"]}\n{"turns": ["\\ud83d"]}\n')
    for read in (read_prompts, load_prompts):
        with pytest.raises(DataError, match="line 2.*half a character"):
            read(path)
