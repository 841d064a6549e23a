"""Holds what the client counted against what the server counted over the same run.

SGLang's counters move when a request ends, aborted ones included. What an aborted request had generated when the server
noticed, some two seconds later, is known to the server alone: it lies between what the client had seen and what the
request allowed. So the equality is exact without such requests, and an interval with them, which short answers make so
wide that little can fall out of it.

Where DSpark serves, its worker counts the tokens of every round by itself, those of aborted requests included. Beside
them a request has one token of its prefill, and one more after each retraction, so that SGLang's count must lie between
the worker's and the worker's plus one for each request of which no token was seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_loadtest.endpoint import Endpoint
from dspark_loadtest.record import RequestRecord

# Never reached the scheduler, which counts, if no token came.
_UNCOUNTED = ("connect", "http_", "stream_429", "stream_503")
_SETTLE_S = 20.0
_POLL_S = 0.25


@dataclass(frozen=True)
class Counts:
    """The server's counters at one moment; None where it has none."""

    metrics: dict[str, float] | None
    totals: dict[str, float] | None


def read_counts(endpoint: Endpoint) -> Counts:
    """Read both kinds of counters."""
    return Counts(endpoint.metrics(), endpoint.totals())


def read_settled(
    endpoint: Endpoint,
    before: Counts,
    records: Sequence[RequestRecord],
    *,
    wait: Callable[[float], None] = time.sleep,
    settle_s: float = _SETTLE_S,
) -> Counts:
    """Read the counters once every request that reached the server is counted, or after some seconds anyway."""
    reached = sum(_reached(record) for record in records)
    counts = read_counts(endpoint)
    waited = 0.0
    while before.metrics is not None and counts.metrics is not None and waited < settle_s:
        if _change(before.metrics, counts.metrics, "num_requests_total") >= reached:
            break
        wait(_POLL_S)
        waited += _POLL_S
        counts = read_counts(endpoint)
    return counts


def reconcile(before: Counts, after: Counts, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Compare token totals.

    Returns
    -------
    dict
        ``available``; for ``completion`` and ``prompt`` the client's least and most, the server's count, and
        ``agrees``, and ``worker_least`` and ``worker_most`` where answers broke off and DSpark served; ``requests``
        counted by both; ``dspark``, what ``/dspark/state`` counted meanwhile, beside the rounds that the requests
        reported.
    """
    done = [record for record in records if record.ok]
    broken = [record for record in records if not record.ok and record.sent is not None]
    found: dict[str, Any] = {"available": before.metrics is not None and after.metrics is not None}
    if before.metrics is not None and after.metrics is not None:
        exact = sum(record.completion_tokens for record in done)
        seen = sum(record.completion_tokens for record in broken)
        most = sum(record.asked_output or 0 for record in broken)
        server = _change(before.metrics, after.metrics, "generation_tokens_total")
        prompts = sum(record.prompt_tokens for record in done)
        server_prompts = _change(before.metrics, after.metrics, "prompt_tokens_total")
        low, high = exact + seen, exact + max(most, seen)
        worker = _worker(before, after, records)
        found["completion"] = {
            "answered": exact,
            "client_least": low,
            "client_most": high,
            **({} if worker is None else {"worker_least": worker[0], "worker_most": worker[1]}),
            "server": server,
            "agrees": low <= server <= high and (worker is None or worker[0] <= server <= worker[1]),
        }
        # Of a prompt that was broken off only the server knows the length.
        found["prompt"] = {
            "answered": prompts,
            "server": server_prompts,
            "agrees": server_prompts == prompts if not broken else server_prompts >= prompts,
        }
        found["requests"] = {
            "answered": len(done),
            "broken_off": len(broken),
            "server": _change(before.metrics, after.metrics, "num_requests_total"),
            "server_aborted": _change(before.metrics, after.metrics, "num_aborted_requests_total"),
        }
    if before.totals is not None and after.totals is not None:
        change = {name: value - before.totals.get(name, 0) for name, value in after.totals.items()}
        rounds = sum(record.verify_rounds or 0 for record in records)
        correct = sum(record.correct_drafts or 0 for record in records)
        same = (change.get("live_rounds"), change.get("drafts_accepted")) == (rounds, correct)
        found["dspark"] = {
            **change,
            "rounds_reported": rounds,
            "correct_drafts_reported": correct,
            # A request that was broken off reports nothing.
            "agrees": same if not broken else None,
        }
    return found


def _worker(before: Counts, after: Counts, records: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """Return between what the worker's count says that SGLang's must lie, where that says more than the answers do.

    Not where answers ended by themselves: SGLang cuts what a round held beyond the end, and the worker has counted it.
    """
    if None in (before.metrics, after.metrics, before.totals, after.totals) or all(record.ok for record in records):
        return None
    if any(record.finish_reason not in ("", "length") for record in records):
        return None
    decoded = _change(before.totals or {}, after.totals or {}, "tokens")
    retracted = _change(before.metrics or {}, after.metrics or {}, "num_retracted_requests_total")
    begun = sum(record.first is not None for record in records)
    return decoded + begun, decoded + sum(_reached(record) for record in records) + retracted


def _reached(record: RequestRecord) -> bool:
    """Whether the server counts a request: about when its last chunk leaves, an aborted one up to some steps later."""
    return record.sent is not None and (record.first is not None or not record.outcome.startswith(_UNCOUNTED))


def _change(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)
