"""The canonical form of a trace: what one request asks and when, field by field."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dspark_loadtest.traces.fields import Row, shown

MOONCAKE_BLOCK = 512


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; names and units are those of Mooncake's files as AIPerf reads them.

    Attributes
    ----------
    timestamp : float or None
        Milliseconds since the trace began. None for a later turn of a session, or throughout a trace that is no
        more than an order.
    input_length, output_length : int or None
        Tokens of the prompt, all turns before it included, and of the answer; at least 1.
    hash_ids : tuple of int
        Content of the prompt in blocks of equal size; equal ids are equal text, so that prefixes are shared.
    session_id : str or None
        Turns of one conversation, in file order.
    delay : float or None
        Milliseconds from the end of the previous turn's answer to this turn.
    text_input : str or None
        The prompt itself, instead of ``input_length``.
    messages, tools : tuple of dict or None
        A conversation in OpenAI's form, instead of ``input_length``.
    extra : dict or None
        Further fields of the request's body.
    category : str or None
        Kind of text (``maths``, ``code``, ``chat``) that the prompt is made of; None leaves it to the replay.
    """

    timestamp: float | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: tuple[int, ...] = ()
    session_id: str | None = None
    delay: float | None = None
    text_input: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    extra: dict[str, Any] | None = None
    category: str | None = None

    def to_json(self) -> str:
        """Return the request as one line of JSON, fields that say nothing left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {name: value for name, value in values.items() if value not in (None, ())}
        for name in ("timestamp", "delay"):
            if name in kept and float(kept[name]).is_integer():
                kept[name] = int(kept[name])
        return json.dumps(kept)


@dataclass(frozen=True)
class Trace:
    """A whole trace, in order of time.

    Attributes
    ----------
    requests : tuple of TraceRequest
    source : dict
        Where it comes from, for the report: ``format``, ``file``, ``sha256``, ``attribution``, counts of rows that
        were dropped, and the rules by which it was changed since (``changes``).
    block_size : int
        Tokens that one of ``hash_ids`` stands for.
    """

    requests: tuple[TraceRequest, ...]
    source: dict[str, Any] = field(default_factory=dict)
    block_size: int = MOONCAKE_BLOCK

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def timed(self) -> bool:
        """Whether it says when to ask; an order alone can only be replayed in a closed loop."""
        return any(request.timestamp is not None for request in self.requests)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last timestamp."""
        stamps = [request.timestamp for request in self.requests if request.timestamp is not None]
        return (max(stamps) - min(stamps)) / 1e3 if stamps else 0.0

    def changed(self, requests: tuple[TraceRequest, ...], rule: str, *, block_size: int | None = None) -> Trace:
        """Return the trace with other requests, and the rule that made them noted in ``source``."""
        source = {**self.source, "changes": [*self.source.get("changes", ()), rule]}
        return Trace(requests, source, self.block_size if block_size is None else block_size)


_NAMES = tuple(f.name for f in fields(TraceRequest))
_CONTENTS = ("input_length", "text_input", "messages")


def parse_request(row: Row) -> TraceRequest:
    """Check one row of a canonical file.

    Raises
    ------
    TraceError
        If a field is unknown, missing, of the wrong kind or out of range; names file, line and field.
    """
    values = {name: value for name, value in row.values.items() if value is not None}
    for name in values:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_NAMES)}"
            row.refuse(shown(name, quote=False), f"is no field of a trace; {hint}")
    contents = [name for name in _CONTENTS if name in values]
    if len(contents) != 1:
        row.refuse("input_length", f"exactly one of {', '.join(_CONTENTS)} is needed, not {len(contents)}")
    if "hash_ids" in values and "input_length" not in values:
        row.refuse("hash_ids", "need input_length beside them")
    return TraceRequest(
        timestamp=row.number("timestamp") if "timestamp" in values else None,
        input_length=row.whole("input_length", low=1) if "input_length" in values else None,
        output_length=row.whole("output_length", low=1) if "output_length" in values else None,
        hash_ids=row.wholes("hash_ids") if "hash_ids" in values else (),
        session_id=row.text("session_id") if "session_id" in values else None,
        delay=row.number("delay") if "delay" in values else None,
        text_input=row.text("text_input") if "text_input" in values else None,
        messages=_objects(row, "messages", "role") if "messages" in values else None,
        tools=_objects(row, "tools", "type") if "tools" in values else None,
        extra=_object(row, "extra") if "extra" in values else None,
        category=row.text("category") if "category" in values else None,
    )


def _objects(row: Row, name: str, needed: str) -> tuple[dict[str, Any], ...]:
    value = row.values[name]
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) and needed in v for v in value):
        row.refuse(name, f"{shown(value)} is not a list of objects with {needed!r} in each")
    return tuple(value)


def _object(row: Row, name: str) -> dict[str, Any]:
    value = row.values[name]
    if not isinstance(value, Mapping):
        row.refuse(name, f"{shown(value)} is not an object")
    return dict(value)
