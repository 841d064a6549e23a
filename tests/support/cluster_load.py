"""Load from `dspark loadtest` on a cluster, a stroke against one replica in the middle of it, and what clients saw."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspark_loadtest.client import AskSettings, ChatClient
from dspark_loadtest.plan import Plan
from dspark_loadtest.prompts import Composer, Library
from dspark_loadtest.record import INTERRUPTED, RequestRecord
from dspark_loadtest.replay import Replay
from dspark_loadtest.traces.request import Trace, TraceRequest
from tests.support.cluster import Counts

MODEL = "pair"
TIMEOUT_S = 240.0


@dataclass
class Stroke:
    """Hits the first replica of which enough answers have begun and have most of their way to go.

    Attributes
    ----------
    act : callable
        Hits the replica at a base URL; called once.
    begun : int
        Such answers of one replica; there must be at least twice as many clients, so that one of two has them.
    seen : tuple of float
        Share of its tokens that such an answer has received, at least and at most.
    replica : str or None
        Which it was.
    struck : list of int
        Its answers that were under way.
    at_s : float
        When, by the monotonic clock.
    """

    act: Callable[[str], None]
    begun: int = 3
    seen: tuple[float, float] = (0.05, 0.5)
    replica: str | None = None
    struck: list[int] = field(default_factory=list)
    at_s: float = 0.0

    def look(self, records: Sequence[RequestRecord]) -> None:
        """Look at all answers; strike if it is time."""
        if self.replica is not None:
            return
        low, high = self.seen
        streaming = [r for r in records if r.outcome == INTERRUPTED and r.first is not None]
        early = Counter(r.replica for r in streaming if low <= r.seen_tokens / (r.asked_output or 1) <= high)
        for replica, count in early.items():
            if count >= self.begun:
                self.replica, self.at_s = replica, time.monotonic()
                self.struck = [record.index for record in streaming if record.replica == replica]
                return self.act(replica)


def ask_all(
    url: str, questions: Sequence[str], tokens: int, clients: int, stroke: Stroke | None = None
) -> list[RequestRecord]:
    """Ask every question once, greedy and streamed, for exactly so many tokens; nothing is asked again by the client.

    Parameters
    ----------
    url : str
        Of a gateway or a replica.
    questions : sequence of str
        A record's ``index`` is the place in it.
    tokens, clients : int
        Of each answer; asking at a time.
    stroke : Stroke, optional
        Shown the records whenever tokens arrive.
    """
    asked = [
        TraceRequest(messages=({"role": "user", "content": question},), output_length=tokens) for question in questions
    ]
    return asyncio.run(_ask(url, Trace(tuple(asked)), clients, stroke))


async def _ask(url: str, trace: Trace, clients: int, stroke: Stroke | None) -> list[RequestRecord]:
    settings = AskSettings(keep_text=True, retries=0, timeout_s=TIMEOUT_S)
    client = ChatClient(url, MODEL, settings, time.perf_counter)
    replay = Replay(client, trace, Composer(Library([]), 1), Plan(concurrency=clients))
    if stroke is not None:
        client.on_tokens = lambda _: stroke.look(replay.records)
    try:
        outcome = await replay.run()
    finally:
        await client.close()
    return sorted(outcome.records, key=lambda record: record.index)


def wrong_answers(records: Sequence[RequestRecord], expected: Sequence[str]) -> list[int]:
    """Give the answers that were presented as complete and are not the expected text: cut short, doubled or other."""
    return [r.index for r in records if r.ok and (r.text != expected[r.index] or r.went_back)]


def lost(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Give the requests whose client got an error."""
    return [record for record in records if not record.ok]


def not_beginnings(records: Sequence[RequestRecord], expected: Sequence[str]) -> list[int]:
    """Give the lost answers that had received anything but the first part of the expected text."""
    return [r.index for r in lost(records) if not expected[r.index].startswith(r.text)]


def by_replica(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Count the complete answers of each replica."""
    counts: dict[str, int] = {}
    for record in records:
        if record.ok:
            counts[record.replica] = counts.get(record.replica, 0) + 1
    return dict(sorted(counts.items()))


def disagreements(before: Counts, after: Counts, records: Sequence[RequestRecord]) -> list[str]:
    """Compare what clients, gateway and the replicas that lived have counted; a sentence for each difference.

    All answers of the replicas in ``after.served`` must be complete. A replica that was killed has taken its counters
    with it, so of its requests only the gateway's and the clients' numbers are compared.
    """
    found = []
    for what, clients, gateway in (
        ("answers that began", len(records), after.answered - before.answered),
        ("answers that broke", len(lost(records)), after.broken - before.broken),
    ):
        if clients != gateway:
            found.append(f"{what}: clients {clients}, gateway {gateway:.0f}")
    for url, served in after.served.items():
        mine = [record for record in records if record.replica == url]
        routed = after.routed.get(url, 0) - before.routed.get(url, 0)
        rows: list[tuple[str, str, float]] = [
            ("requests", "num_requests_total", len(mine)),
            ("tokens of answers", "generation_tokens_total", sum(r.completion_tokens for r in mine)),
            ("tokens of prompts", "prompt_tokens_total", sum(r.prompt_tokens for r in mine)),
        ]
        for what, name, clients in rows:
            own = served[name] - before.served[url][name]
            handed = after.passed_on[url][name] - before.passed_on[url][name]
            if not clients == own == handed:
                found.append(f"{what} at {url}: clients {clients}, replica {own:.0f}, by the gateway {handed:.0f}")
        if routed != len(mine):
            found.append(f"the gateway sent {routed:.0f} requests to {url}, clients got {len(mine)} answers from there")
    return found


def read_when_counted(read: Callable[[], Counts], before: Counts, records: Sequence[RequestRecord]) -> Counts:
    """Read the counters once every request is in them, or at a deadline: a replica counts when it has said the last."""
    deadline = time.monotonic() + 20.0
    while True:
        counts = read()
        if not disagreements(before, counts, records) or time.monotonic() > deadline:
            return counts
        time.sleep(0.2)


def described(records: Sequence[RequestRecord], expected: Sequence[str]) -> list[dict[str, Any]]:
    """Describe each lost answer for a report."""
    return [
        {
            "request": record.index,
            "replica": record.replica,
            "tokens_received": record.seen_tokens,
            "tokens_asked": record.asked_output,
            "ended_with": record.outcome,
            "message": record.message,
            "is_the_beginning": expected[record.index].startswith(record.text),
        }
        for record in lost(records)
    ]
