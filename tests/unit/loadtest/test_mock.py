"""The mock's answers as clients other than ours read them."""

from __future__ import annotations

import openai
import requests

from dspark_loadtest.mock.script import Script
from dspark_loadtest.mock.server import MODEL, MockServer

FAST = Script(ttft_s=0.005, tpot_s=0.001, tokens_per_chunk=(1, 3), max_tokens=9)


def test_a_strict_client_reads_every_chunk() -> None:
    with MockServer(FAST) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        assert [model.id for model in client.models.list()] == [MODEL]
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "one two"}],
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=5,
        )
        chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "t0 t1 t2 t3 t4 "
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_the_older_name_of_the_limit_is_read_too() -> None:
    with MockServer(FAST) as server:
        body = {"messages": [], "max_tokens": 2}
        text = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=30).text
    assert "t1 " in text
    assert "t2 " not in text
