"""A step-time model on disk, with the conditions it was measured under; refused under any others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_dspark.errors import ProfileError, StaleProfileError
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel

SCHEMA = 1
_CURVES = ("verify", "draft", "plain")
_SCALARS = (
    "verify_request_s",
    "accept_s",
    "accept_request_s",
    "accept_token_s",
    "context_token_s",
    "context_query_s",
    "draft_context_s",
    "prefill_token_s",
    "host_s",
    "host_request_s",
)
_MISSING = "nothing"


@dataclass(frozen=True)
class Fingerprint:
    """Everything that, if it changes, makes measured step times those of another machine.

    Attributes
    ----------
    conditions : mapping of str to str, int or float
        Model, weights, draft, gamma, device and its name, threads, TP size, dtype, attention backend, graph tiers,
        package and engine versions: whatever the server knows, flat. Order matters only for which difference is named.
    """

    conditions: Mapping[str, str | int | float]

    def __post_init__(self) -> None:
        for name, value in self.conditions.items():
            if not isinstance(value, str | int | float):
                raise ValueError(f"{name} of a fingerprint must be text or a number, not {type(value).__name__}")

    def difference(self, stored: Mapping[str, Any]) -> str:
        """Return the first condition that differs, with both values; empty if none does."""
        for name in (*self.conditions, *(name for name in stored if name not in self.conditions)):
            here, there = self.conditions.get(name, _MISSING), stored.get(name, _MISSING)
            if here != there:
                return f"{name} was {there!r} when it was measured and is {here!r} now"
        return ""


def _curve_document(curve: Curve | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {"sizes": curve.sizes.tolist(), "seconds": curve.seconds.tolist(), "stairs": curve.stairs}


def to_document(model: StepTimeModel) -> dict[str, Any]:
    """Return the model as plain JSON values, for the file and for ``/dspark/state``."""
    document: dict[str, Any] = {name: _curve_document(getattr(model, name)) for name in _CURVES}
    return document | {name: getattr(model, name) for name in _SCALARS}


def from_document(document: Mapping[str, Any]) -> StepTimeModel:
    """Return the model that :func:`to_document` described.

    Raises
    ------
    ProfileError
        If a term is missing or is not what the model accepts.
    """
    try:
        curves = {
            name: None
            if (value := document[name]) is None
            else Curve(value["sizes"], value["seconds"], value["stairs"])
            for name in _CURVES
        }
        return StepTimeModel(**curves, **{name: float(document[name]) for name in _SCALARS})  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ProfileError(f"the step-time profile is damaged ({reason}); delete it to measure again") from error


def save(path: Path, model: StepTimeModel, fingerprint: Fingerprint) -> None:
    """Write a profile so that a reader sees the old file or the new one, never a part of it."""
    document = {"schema": SCHEMA, "fingerprint": dict(fingerprint.conditions), "model": to_document(model)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def load(path: Path, fingerprint: Fingerprint) -> StepTimeModel:
    """Read a profile that was measured under the same conditions.

    Raises
    ------
    StaleProfileError
        If its schema or any condition differs; the message names the first one and both values. Measure again.
    ProfileError
        If the file cannot be read, is truncated or is damaged. Delete it and measure again.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"the step-time profile {path} cannot be read ({error.strerror}); measure again") from error
    except ValueError as error:
        raise ProfileError(f"the step-time profile {path} is damaged ({error}); delete it to measure again") from error
    if not isinstance(document, dict) or not isinstance(document.get("fingerprint"), dict):
        raise ProfileError(f"{path} is not a step-time profile; delete it to measure again")
    if document.get("schema") != SCHEMA:
        raise StaleProfileError(f"schema of {path} is {document.get('schema')!r}, not {SCHEMA}; it is measured again")
    if difference := fingerprint.difference(document["fingerprint"]):
        raise StaleProfileError(f"{path}: {difference}; it is measured again")
    return from_document(document.get("model") or {})
