"""Loads a trace of any format that is known, and writes it in the canonical one."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dspark_loadtest.errors import TraceError
from dspark_loadtest.traces.bailian import BLOCK as BAILIAN_BLOCK
from dspark_loadtest.traces.bailian import bailian
from dspark_loadtest.traces.fields import Row
from dspark_loadtest.traces.files import csv_rows, json_rows, read_text
from dspark_loadtest.traces.request import MOONCAKE_BLOCK, Trace, TraceRequest, parse_request
from dspark_loadtest.traces.tables import azure, burstgpt

Found = tuple[list[TraceRequest], dict[str, Any]]
FORMATS = ("canonical", "azure", "burstgpt", "bailian")
# Named for the report where a file's own name tells its source.
_MOONCAKE = "kvcache-ai/Mooncake, Apache-2.0"


def load_trace(path: Path, *, form: str | None = None, block_size: int | None = None) -> Trace:
    """Read a trace file and check every row.

    Parameters
    ----------
    path : Path
        Plain or ``.gz``.
    form : str, optional
        One of `FORMATS`; by default what the first row looks like.
    block_size : int, optional
        Tokens per hash id; by default what lengths and numbers of ids agree on.

    Raises
    ------
    TraceError
        If a row is not in the format; names the file, the line and the field. If there is no request.
    """
    text, digest = read_text(path)
    found_form = form or detect(text, path)
    rows = json_rows(text, path.name) if found_form in ("canonical", "bailian") else csv_rows(text, path.name)
    requests, facts = _CONVERTERS[found_form](rows)
    if not requests:
        raise TraceError(f"{path}: holds no request with a prompt and an answer")
    known = BAILIAN_BLOCK if found_form == "bailian" else MOONCAKE_BLOCK
    if found_form == "canonical" and "mooncake" in path.name.lower():
        facts["attribution"] = _MOONCAKE
    source = {"format": found_form, "file": path.name, "sha256": digest, "rows": len(requests), **facts}
    return Trace(tuple(requests), source, block_size or infer_block_size(requests) or known)


def detect(text: str, path: Path) -> str:
    """Tell the format by the first line; raise `TraceError` if it is none that is known."""
    line = text.lstrip().split("\n", 1)[0].strip()
    if line.startswith("{"):
        return "bailian" if '"chat_id"' in line and '"parent_chat_id"' in line else "canonical"
    columns = {cell.strip().strip('"') for cell in line.split(",")}
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
        return "azure"
    if {"Timestamp", "Request tokens", "Response tokens"} <= columns:
        return "burstgpt"
    raise TraceError(
        f"{path}, line 1: {line[:60]!r} begins no trace that is known; give --format, one of {', '.join(FORMATS)}"
    )


def _canonical(rows: Iterable[Row]) -> Found:
    made: list[TraceRequest] = []
    dropped = 0
    sessions: set[str] = set()
    for row in rows:
        if row.values.get("output_length") == 0:
            dropped += 1
            continue
        request = parse_request(row)
        first = request.session_id is None or request.session_id not in sessions
        if first and made and (request.timestamp is None) != (made[0].timestamp is None):
            row.refuse("timestamp", "is there in some requests and missing in others that begin a session")
        if request.session_id is not None:
            sessions.add(request.session_id)
        made.append(request)
    return in_order(made), {"dropped_without_tokens": dropped}


def in_order(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Sort by time; a turn without a timestamp stays behind the turn before it."""
    latest: dict[str | None, float] = {}
    keys: list[float] = []
    listed = list(requests)
    for request in listed:
        at = latest.get(request.session_id, 0.0) if request.timestamp is None else request.timestamp
        if request.session_id is not None:
            latest[request.session_id] = at
        keys.append(at)
    return [listed[i] for i in sorted(range(len(listed)), key=keys.__getitem__)]


_CONVERTERS: dict[str, Callable[[Iterable[Row]], Found]] = {
    "canonical": _canonical,
    "azure": azure,
    "burstgpt": burstgpt,
    "bailian": bailian,
}


def infer_block_size(requests: Iterable[TraceRequest]) -> int | None:
    """Return the power of two that explains how many hash ids a length has, if one explains nearly all."""
    votes: Counter[int] = Counter()
    total = 0
    for request in requests:
        if not request.hash_ids or request.input_length is None:
            continue
        total += 1
        for power in range(3, 13):
            votes[1 << power] += math.ceil(request.input_length / (1 << power)) == len(request.hash_ids)
    # A file of short prompts agrees with several; then the usual one.
    best = max(votes, key=lambda size: (votes[size], size == MOONCAKE_BLOCK), default=None)
    return best if best is not None and votes[best] >= 0.9 * total else None


def write_trace(trace: Trace, path: Path) -> None:
    """Write the canonical form, plain or gzipped by the file's name."""
    text = "".join(request.to_json() + "\n" for request in trace.requests).encode()
    # No time stamp in the archive: the same trace is the same file.
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
