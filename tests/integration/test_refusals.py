"""What is not exact under DSpark is answered with HTTP 400 and its name, on every endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server
GENERATE: dict[str, dict[str, Any]] = {"beam_width": {"beam_width": 2}, "watermark": {"watermark": {"enabled": True}}}


def message(body: dict[str, Any]) -> str:
    return str(body.get("message") or body["error"]["message"])


@pytest.mark.parametrize("name", GENERATE)
def test_generate(dspark: ServerProcess, name: str) -> None:
    path, payload = pair.generate(pair.prompts()[0], **GENERATE[name])
    response = dspark.post(path, payload)
    assert response.status_code == 400, response.text
    assert name in message(response.json())
    streamed = dspark.post(path, {**payload, "stream": True})
    assert streamed.status_code == 400, streamed.text
    assert name in message(streamed.json())


def test_neutral_values_are_served(dspark: ServerProcess) -> None:
    neutral = {"frequency_penalty": 0, "presence_penalty": 0, "n": 1, "response_format": {"type": "text"}, "seed": None}
    assert dspark.ask(*pair.chat("What is 2 + 3?", **neutral))["choices"][0]["message"]["content"]
