"""Alibaba's Bailian traces: conversations by parent, content in blocks of 16 tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dspark_loadtest.traces.fields import Row, shown
from dspark_loadtest.traces.request import TraceRequest

ATTRIBUTION = "alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0"
BLOCK = 16


def bailian(rows: Iterable[Row]) -> tuple[list[TraceRequest], dict[str, Any]]:
    """Convert ``chat_id, parent_chat_id, timestamp`` (s) ``, input_length, output_length, hash_ids``.

    A turn belongs to the session of its parent; one whose parent is -1, or was cut off with the beginning of the file,
    begins a session. Sessions of one turn are not named. Turns without an answer are dropped and counted, and their
    children still find their session.

    Raises
    ------
    TraceError
        If a ``chat_id`` comes twice, besides what a row may lack.
    """
    sessions: dict[str, str] = {}
    turns: dict[str, int] = {}
    kept: list[tuple[str, TraceRequest]] = []
    dropped = 0
    for row in rows:
        chat, parent = row.text("chat_id"), row.text("parent_chat_id")
        if chat in sessions:
            row.refuse("chat_id", f"{shown(chat)} comes twice")
        session = sessions[chat] = sessions.get(parent, chat)
        answer = row.whole("output_length")
        request = TraceRequest(
            timestamp=round(1e3 * row.number("timestamp"), 4),
            input_length=row.whole("input_length", low=1),
            output_length=max(answer, 1),
            hash_ids=row.wholes("hash_ids") if row.values.get("hash_ids") is not None else (),
            session_id=session,
        )
        if answer:
            kept.append((session, request))
            turns[session] = turns.get(session, 0) + 1
        else:
            dropped += 1
    made = [request if turns[session] > 1 else replace(request, session_id=None) for session, request in kept]
    made.sort(key=lambda request: request.timestamp or 0.0)
    return made, {"attribution": ATTRIBUTION, "dropped_without_tokens": dropped}
