"""Azure's and BurstGPT's tables: one request a row, no content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from dspark_loadtest.traces.fields import Row
from dspark_loadtest.traces.request import TraceRequest

AZURE_ATTRIBUTION = "Azure/AzurePublicDataset, CC-BY-4.0"
BURSTGPT_ATTRIBUTION = "HPMLL/BurstGPT, CC-BY-4.0"
_EPOCH = datetime(2000, 1, 1)
_TICKS_PER_S, _TICKS_PER_MS = 10_000_000, 10_000

Found = tuple[list[TraceRequest], dict[str, Any]]


def azure(rows: Iterable[Row]) -> Found:
    """Convert ``TIMESTAMP,ContextTokens,GeneratedTokens``, of 2023 (100 ns, local) and 2024 (with an offset).

    Rows without a prompt or an answer are dropped and counted. Time begins at the earliest row.
    """
    made: list[tuple[int, TraceRequest]] = []
    dropped = 0
    for row in rows:
        prompt, answer = row.whole("ContextTokens"), row.whole("GeneratedTokens")
        at = _azure_ticks(row)
        if prompt and answer:
            made.append((at, TraceRequest(input_length=prompt, output_length=answer)))
        else:
            dropped += 1
    return _from_zero(made, _TICKS_PER_MS), {"attribution": AZURE_ATTRIBUTION, "dropped_without_tokens": dropped}


def _azure_ticks(row: Row) -> int:
    """Return the time in units of 100 ns, whole so that none is lost to rounding."""
    text = row.text("TIMESTAMP").strip()
    # Seven fractional digits are one more than datetime reads; the fraction may be absent, an offset may follow it.
    whole, _, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        stamp = datetime.fromisoformat(whole + rest[len(digits) :])
        since = (stamp.replace(tzinfo=None) - _EPOCH) - (stamp.utcoffset() or timedelta())
        return (since.days * 86_400 + since.seconds) * _TICKS_PER_S + int(digits[:7].ljust(7, "0") or 0)
    except (ValueError, OverflowError):
        row.refuse("TIMESTAMP", f"{text[:40]!r} is not a time such as 2023-11-16 18:15:46.6805900")


def burstgpt(rows: Iterable[Row]) -> Found:
    """Convert BurstGPT: ``Timestamp`` (s), ``Request tokens``, ``Response tokens``, perhaps ``Session ID``.

    Failures, which have no response tokens, are dropped and counted. A session's turns keep their own timestamps.
    """
    made: list[tuple[float, TraceRequest]] = []
    failed = 0
    for row in rows:
        at = 1e3 * row.number("Timestamp")
        prompt, answer = row.whole("Request tokens"), row.whole("Response tokens")
        session = str(row.values.get("Session ID") or "").strip() or None
        if prompt and answer:
            made.append((at, TraceRequest(input_length=prompt, output_length=answer, session_id=session)))
        else:
            failed += 1
    return _from_zero(made, 1), {"attribution": BURSTGPT_ATTRIBUTION, "dropped_failures": failed}


def _from_zero(made: Sequence[tuple[float, TraceRequest]], per_ms: int) -> list[TraceRequest]:
    """Set timestamps, in ms from the earliest, to 100 ns; ``made`` has ``per_ms`` units to the millisecond."""
    if not made:
        return []
    first = min(at for at, _ in made)
    ordered = sorted(made, key=lambda pair: pair[0])
    return [replace(request, timestamp=round((at - first) / per_ms, 4)) for at, request in ordered]
