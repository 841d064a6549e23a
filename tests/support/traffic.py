"""Clients that count what they receive and when, one thread each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support import pair
from tests.support.server import ServerProcess, concurrently


@dataclass
class Received:
    """What one client got.

    Attributes
    ----------
    tokens : int
        As the last message says.
    times_s : list of float
        Of each message that brought tokens, and ``counts`` the tokens until then.
    """

    tokens: int = 0
    times_s: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    finish: str = ""
    retractions: int = 0

    @property
    def speed(self) -> float | None:
        """Tokens per second after the first message; None for fewer than two."""
        if len(self.times_s) < 2:
            return None
        return (self.counts[-1] - self.counts[0]) / (self.times_s[-1] - self.times_s[0])


@dataclass(frozen=True)
class Visit:
    """What a client asks, and after how many tokens it cancels its request (None: never)."""

    prompt: int
    tokens: int
    streamed: bool = True
    cancel_after: int | None = None
    temperature: float = 0.0
    ignore_eos: bool = False
    stop: Sequence[str] = ()


def pay(server: ServerProcess, visit: Visit, rid: str) -> Received:
    """Make one visit and read to its end, also after cancelling."""
    path, payload = pair.generate(
        pair.prompts()[visit.prompt],
        max_new_tokens=visit.tokens,
        temperature=visit.temperature,
        ignore_eos=visit.ignore_eos,
        **({"stop": list(visit.stop)} if visit.stop else {}),
    )
    payload = {**payload, "rid": rid}
    received = Received()
    if not visit.streamed:
        _take(received, server.ask(path, payload))
        return received
    cancelled = False
    for event in server.stream(path, payload):
        _take(received, event)
        if visit.cancel_after is not None and received.tokens >= visit.cancel_after and not cancelled:
            cancelled = True
            server.post("/abort_request", {"rid": rid})
    return received


def _take(received: Received, message: dict[str, Any]) -> None:
    meta = message["meta_info"]
    if meta["completion_tokens"] > received.tokens:
        received.tokens = meta["completion_tokens"]
        received.times_s.append(time.perf_counter())
        received.counts.append(received.tokens)
    if meta["finish_reason"]:
        received.finish = meta["finish_reason"]["type"]
    received.retractions = meta.get("num_retractions", 0) or 0


def serve_all(server: ServerProcess, visits: Sequence[Visit], workers: int, name: str) -> list[Received]:
    """Make all visits, at most ``workers`` at a time."""
    # Here, since loading the tokenizer in many threads at once fails.
    pair.prompts()
    numbered = list(enumerate(visits))
    return concurrently(lambda item: pay(server, item[1], f"{name}-{item[0]}"), numbered, workers)
