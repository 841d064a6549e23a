"""LangChain's standard tests over ChatOpenAI; runs in the suites' environment, against SUITE_BASE_URL."""

from __future__ import annotations

import json
import os
from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class ClosingChatOpenAI(ChatOpenAI):
    """Lets a toy close what a grammar made it open; without a grammar it is ChatOpenAI."""

    def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload = super()._get_request_payload(*args, **kwargs)
        if "tool_choice" in payload or "response_format" in payload:
            payload["logit_bias"] = json.loads(os.environ["SUITE_LOGIT_BIAS"])
        return payload


class TestChatOpenAI(ChatModelIntegrationTests):
    """What the model can is left at the suite's defaults: text and tools; the rest is skipped by name."""

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        """The class under test."""
        return ClosingChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """Its arguments."""
        base_url = os.environ["SUITE_BASE_URL"]
        limits = {"max_tokens": 96, "temperature": 0, "max_retries": 0, "timeout": 60}
        return {"base_url": base_url, "api_key": "x", "model": "default", "stream_usage": True, **limits}

    @property
    def model_override_value(self) -> str:
        """Another name of the same model; the server takes every name."""
        return "another-name"

    @property
    def supports_json_mode(self) -> bool:
        """Whether it takes ``response_format``."""
        return True
