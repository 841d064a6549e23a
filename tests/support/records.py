"""Records of requests as if measured, from a few numbers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from dspark_loadtest.record import OK, RequestRecord


def answered(
    index: int, sent: float, chunks: Sequence[tuple[float, int]], *, due: float | None = None, **fields: Any
) -> RequestRecord:
    """Make a record of an answer whose chunks came at (seconds, tokens); running usage beside each."""
    tokens = sum(count for _, count in chunks)
    record = RequestRecord(index, due=sent if due is None else due, sent=sent, outcome=OK)
    record.first, record.last = chunks[0][0], chunks[-1][0]
    record.end = record.last
    record.chunk_at = array("d", [at for at, _ in chunks])
    record.chunk_tokens = array("l", [count for _, count in chunks])
    record.seen_tokens = record.completion_tokens = record.asked_output = tokens
    record.prompt_tokens = 10
    record.finish_reason = "length"
    for name, value in fields.items():
        setattr(record, name, value)
    return record
