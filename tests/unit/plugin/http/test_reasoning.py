"""Reasoning in a stream, however many characters an event brings: a block brings several tokens at once."""

from __future__ import annotations

import pytest

pytest.importorskip("sglang")

TEXT, REASONING, ANSWER = "<think>abc</think>normal", "abc", "normal"


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("model", ["qwen3", "deepseek-r1"])
def test_tags_split_anywhere(model: str, offset: int, width: int) -> None:
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    parser = ReasoningParser(model, stream_reasoning=True)
    cuts = [0, *range(offset % width or width, len(TEXT), width), len(TEXT)]
    reasoning, answer = "", ""
    for start, end in zip(cuts, cuts[1:], strict=False):
        more, text = parser.parse_stream_chunk(TEXT[start:end])
        reasoning, answer = reasoning + (more or ""), answer + (text or "")
    assert (reasoning, answer) == (REASONING, ANSWER)
