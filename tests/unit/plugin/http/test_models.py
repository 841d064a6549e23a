"""Names of models: the served one, the default, adapters, and everything else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_sglang.http.errors import ApiError
from dspark_sglang.http.models import resolve_adapter
from dspark_sglang.http.openai import checked

SERVED = "s3://bucket/model:v2"


@pytest.mark.parametrize(
    ("model", "adapter"),
    [(SERVED, None), ("default", None), ("law", "law"), (f"{SERVED}:law", "law"), ("default:law", "law")],
)
def test_known_names(model: str, adapter: str | None) -> None:
    assert resolve_adapter(model, SERVED, ["law", "code"]) == adapter


@pytest.mark.parametrize("model", ["", "gpt-4", "Law", SERVED.upper(), f"{SERVED}:", f"{SERVED}:none", "gpt-4:law"])
def test_unknown_names(model: str) -> None:
    with pytest.raises(ApiError) as caught:
        resolve_adapter(model, SERVED, ["law"])
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


class Serving:
    """A handler of SGLang's with one adapter loaded."""

    def __init__(self, lora: bool = True) -> None:
        adapters = {"id": SimpleNamespace(lora_name="law")}
        registry = SimpleNamespace(get_all_adapters=lambda: adapters)
        config = SimpleNamespace(vocab_size=10)
        self.tokenizer_manager = SimpleNamespace(
            served_model_name=SERVED, enable_lora=lora, lora_registry=registry, model_config=config
        )

    async def handle_request(self, request: Any, raw_request: Any) -> Any:
        return request


def handle(model: str, *, lora: bool = True, any_model: bool = False, one_name: bool = False) -> Any:
    request = SimpleNamespace(model=model, lora_path=None, stream=False)
    handler = checked(Serving.handle_request, any_model, knows_one_name=one_name)
    return asyncio.run(handler(Serving(lora), request, SimpleNamespace(scope={"path": "/v1/completions"})))


def test_an_adapter_asked_for_by_its_own_name_is_used() -> None:
    assert handle("law").lora_path == "law"
    assert handle(SERVED).lora_path is None
    assert handle("law", lora=False).status_code == 404


def test_any_name_where_that_is_set() -> None:
    assert handle("gpt-4").status_code == 404
    assert handle("gpt-4", any_model=True).model == "gpt-4"
    assert handle("gpt-4", any_model=True, one_name=True).model == SERVED
