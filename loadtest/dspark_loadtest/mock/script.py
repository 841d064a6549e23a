"""What the mock server does: how fast, in which pieces, and what goes wrong when."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dspark_loadtest.errors import LoadtestError

FAULTS = ("none", "429", "503", "error", "disconnect")


@dataclass(frozen=True)
class Script:
    """One way to answer.

    Attributes
    ----------
    ttft_s : float
        Seconds from a request's arrival to the first chunk with text.
    tpot_s : float
        Seconds per token after that: a chunk of k tokens comes ``k * tpot_s`` after the chunk before it.
    tokens_per_chunk : tuple of int
        Tokens of one chunk after the other, from the beginning again. Each stands for one verification round.
    first_chunk_tokens : int
        Tokens of the first chunk, which is prefill's and belongs to no round.
    gamma : int
        Drafts that each round is said to have proposed; 0: nothing is said about speculation.
    max_tokens : int
        Tokens of an answer to a request that does not say.
    natural_length : int or None
        Tokens after which an answer ends by itself unless ``ignore_eos``.
    concurrency : int or None
        Answers at a time; others wait, first come, first served.
    stall_at_s, stall_s : float
        The whole server says nothing for ``stall_s`` from ``stall_at_s`` after its first request on.
    fault : str
        One of ``none``, ``429``, ``503``, ``error`` (in the stream) and ``disconnect`` (in the stream).
    fault_every : int
        Every which request fails, from the first; a retry is a request of its own.
    fault_after_tokens : int
        Tokens that are still sent before the stream fails.
    retry_after_s : float or None
        ``Retry-After`` of 429 and 503.
    context : int
        As ``/v1/models`` reports it.
    continuous_usage : bool
        Whether chunks carry the usage so far.
    """

    ttft_s: float = 0.1
    tpot_s: float = 0.02
    tokens_per_chunk: tuple[int, ...] = (1,)
    first_chunk_tokens: int = 1
    gamma: int = 0
    max_tokens: int = 64
    natural_length: int | None = None
    concurrency: int | None = None
    stall_at_s: float = 0.0
    stall_s: float = 0.0
    fault: str = "none"
    fault_every: int = 1
    fault_after_tokens: int = 3
    retry_after_s: float | None = None
    context: int = 4096
    continuous_usage: bool = True

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "stall_at_s", "stall_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise LoadtestError(f"{name}: {getattr(self, name)} is not a number of at least 0")
        for name in ("first_chunk_tokens", "max_tokens", "fault_every", "context"):
            if getattr(self, name) < 1:
                raise LoadtestError(f"{name}: {getattr(self, name)} is below 1")
        if not self.tokens_per_chunk or min(self.tokens_per_chunk) < 1:
            raise LoadtestError("tokens_per_chunk: give one or more numbers of at least 1")
        if self.fault not in FAULTS:
            raise LoadtestError(f"fault: {self.fault!r} is none of {', '.join(FAULTS)}")
        if self.gamma and max(self.tokens_per_chunk) > self.gamma + 1:
            raise LoadtestError(f"gamma: a round of {self.gamma} drafts has no {max(self.tokens_per_chunk)} tokens")

    def chunks(self, tokens: int) -> list[tuple[float, int]]:
        """Return the seconds after arrival and the tokens of each chunk of an answer, without stalls."""
        at, sent = self.ttft_s, min(self.first_chunk_tokens, tokens)
        found = [(at, sent)]
        number = 0
        while sent < tokens:
            count = min(self.tokens_per_chunk[number % len(self.tokens_per_chunk)], tokens - sent)
            at, sent, number = at + count * self.tpot_s, sent + count, number + 1
            found.append((at, count))
        return found


def load_script(path: Path | None, changes: Mapping[str, Any] | None = None) -> Script:
    """Read a script from a JSON object of its fields, with ``changes`` on top.

    Raises
    ------
    LoadtestError
        If the file cannot be read, or a field is unknown or out of range; names it.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise LoadtestError(f"{path}: cannot be read as JSON: {error}") from error
        if not isinstance(found, dict):
            raise LoadtestError(f"{path}: is not a JSON object")
        values = found
    values = {**values, **(changes or {})}
    known = {f.name for f in fields(Script)}
    for name in values:
        if name not in known:
            raise LoadtestError(f"{name}: is no field of a script; there are: {', '.join(sorted(known))}")
    if "tokens_per_chunk" in values:
        given = values["tokens_per_chunk"]
        values["tokens_per_chunk"] = tuple(given) if isinstance(given, list | tuple) else (given,)
    try:
        return Script(**values)
    except TypeError as error:
        raise LoadtestError(f"a field of the script is of the wrong kind: {error}") from error
