"""Which names of models this server answers to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dspark_sglang.http.errors import ApiError

# What SGLang takes when a request names no model.
DEFAULT_NAME = "default"


def resolve_adapter(model: str, served: str, adapters: Iterable[str]) -> str | None:
    """Return the adapter that a model name stands for, None for the model itself.

    Parameters
    ----------
    model : str
        Of the request: the served name, ``default``, ``name:adapter``, or an adapter alone, as ``/v1/models`` lists it.
    served : str
        The name that the server was started with; it may hold colons itself.
    adapters : iterable of str
        Names of the loaded adapters.

    Raises
    ------
    ApiError
        404 for every other name.
    """
    if model in (served, DEFAULT_NAME):
        return None
    loaded = set(adapters)
    if model in loaded:
        return model
    for base in (served, DEFAULT_NAME):
        adapter = model.removeprefix(f"{base}:")
        if adapter != model and adapter in loaded:
            return adapter
    raise ApiError(404, f"the model '{model}' does not exist; this server has '{served}'", "model_not_found", "model")


def adapters_of(manager: Any) -> list[str]:
    """Return the names of the LoRA adapters that SGLang's tokenizer manager has loaded."""
    if not getattr(manager, "enable_lora", False):
        return []
    return [reference.lora_name for reference in manager.lora_registry.get_all_adapters().values()]
