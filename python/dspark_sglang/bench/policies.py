"""Policies as arms: one DSpark server, switched between measurements, and its own count of what it verified."""

from __future__ import annotations

from typing import Any

from dspark_sglang.bench import BenchError
from dspark_sglang.calibrate.source import Server, ServerError
from sgl_dspark.comparison import Policy


def switch(url: str, policy: Policy) -> None:
    """Set the server's policy; raise `BenchError` if it refuses it or knows no policies."""
    _ask(url, "/dspark/policy", policy.body)


def read_counts(url: str) -> dict[str, float]:
    """Return what the server has counted so far, replicas added up.

    Returns
    -------
    dict
        The numbers of ``totals`` in ``GET /dspark/state`` by name; each ``fallbacks`` count as ``fallbacks.<reason>``.

    Raises
    ------
    BenchError
        If the server has no such state.
    """
    state = _ask(url, "/dspark/state")
    counts: dict[str, float] = {}
    for replica in state.get("replicas") or [state]:
        if not isinstance(replica.get("totals"), dict):
            raise BenchError(f"{url}/dspark/state holds no totals; --policies needs a server of this version")
        named = {f"fallbacks.{reason}": n for reason, n in (replica.get("fallbacks") or {}).items()}
        for name, value in {**replica["totals"], **named}.items():
            if isinstance(value, int | float):
                counts[name] = counts.get(name, 0) + value
    return counts


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Subtract counts by name; one that was not there before began at zero."""
    return {name: value - before.get(name, 0) for name, value in after.items()}


def mean_verify_len(counts: dict[str, float] | None) -> float | None:
    """Return verify tokens per request and step, anchors included; None if nothing was counted."""
    if not counts or not counts.get("rounds") or "verify_tokens" not in counts:
        return None
    return counts["verify_tokens"] / counts["rounds"]


def _ask(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return Server(url).ask(path, body)
    except ServerError as error:
        raise BenchError(str(error)) from error
