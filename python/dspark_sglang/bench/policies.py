"""Policies as arms: one DSpark server, switched between measurements, and its own count of what it verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_sglang.bench import BenchError
from dspark_sglang.calibrate.source import Server, ServerError

ADAPTIVE = "adaptive"
# Name of a policy, what follows its colon, and how that reads.
_VALUES: dict[str, tuple[str, Callable[[str], float]] | None] = {
    ADAPTIVE: None,
    "early-stop": None,
    "static": ("verify_drafts", int),
    "threshold": ("threshold", float),
}


@dataclass(frozen=True)
class Policy:
    """One way to choose verify lengths.

    Attributes
    ----------
    name : str
        As on the command line, such as ``static:3``; the arm's label.
    body : dict
        What ``POST /dspark/policy`` is sent.
    """

    name: str
    body: dict[str, Any]


def parse_policies(text: str) -> list[Policy]:
    """Read a list such as ``adaptive,static:1,threshold:0.5,early-stop``.

    Raises
    ------
    ValueError
        If a name or a value is unknown, or one comes twice; names it.
    """
    policies = [_parse(part.strip()) for part in text.split(",")]
    for name in (policy.name for policy in policies):
        if sum(policy.name == name for policy in policies) > 1:
            raise ValueError(f"{name!r} comes twice")
    return policies


def _parse(text: str) -> Policy:
    kind, colon, value = text.partition(":")
    if kind not in _VALUES:
        raise ValueError(f"{text!r} is no policy; there are: {', '.join(sorted(_VALUES))}")
    wanted = _VALUES[kind]
    if wanted is None:
        if colon:
            raise ValueError(f"{kind!r} takes no value, but {text!r} has one")
        return Policy(kind, {"policy": kind})
    field, read = wanted
    try:
        number = read(value)
    except ValueError:
        raise ValueError(f"{text!r} lacks its number; write {kind}:{3 if read is int else 0.5}, for example") from None
    return Policy(text, {"policy": kind, field: number})


def rotated(policies: Sequence[Policy], by: int) -> list[Policy]:
    """Begin with another policy each round, so that none always follows the same one."""
    first = by % len(policies) if policies else 0
    return [*policies[first:], *policies[:first]]


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
