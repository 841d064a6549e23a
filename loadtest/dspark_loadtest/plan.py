"""How a trace is to be replayed, and what a run leaves behind."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.record import RequestRecord
from dspark_loadtest.traces.request import TraceRequest


@dataclass(frozen=True)
class Leaving:
    """Clients that go away before their answer is complete.

    Attributes
    ----------
    share : float
        Of all requests, in [0, 1]; half of them leave after some tokens, half after some seconds.
    tokens, seconds : float
        Each leaves after a number drawn evenly between 0 and this.
    """

    share: float = 0.0
    tokens: int = 16
    seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise LoadtestError(f"leave: {self.share} is not a share between 0 and 1")


@dataclass(frozen=True)
class Plan:
    """How to replay.

    Attributes
    ----------
    concurrency : int or None
        None: open loop, each request is sent at the trace's time whatever the server does. A number: closed loop of
        so many clients, each asking again when its answer has ended; timestamps and delays are not used.
    speed : float
        The trace's clock runs so many times faster.
    duration_s : float or None
        Nothing is sent after so many seconds of the run.
    max_requests : int or None
        No conversation is begun after so many; a single request is one.
    drain_s : float
        Open loop: answers may go on for so long after the last request was due; then they are given up as
        ``unanswered``. In a closed loop each has its own time-out.
    cycle : bool
        Closed loop: begin the trace again when it is used up, until ``duration_s`` or ``max_requests``.
    leaving : Leaving
    seed : int
        Decides who leaves.
    """

    concurrency: int | None = None
    speed: float = 1.0
    duration_s: float | None = None
    max_requests: int | None = None
    drain_s: float = 600.0
    cycle: bool = False
    leaving: Leaving = field(default_factory=Leaving)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise LoadtestError(f"speed: {self.speed} is not a positive number")
        for name in ("concurrency", "max_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LoadtestError(f"{name}: {value} is below 1")
        if self.cycle and self.duration_s is None and self.max_requests is None:
            raise LoadtestError("cycle: a trace that begins again needs a duration or a number of requests")

    @property
    def open_loop(self) -> bool:
        """Whether the trace's clock decides when to send."""
        return self.concurrency is None


@dataclass
class Outcome:
    """What a run leaves behind.

    Attributes
    ----------
    records : list of RequestRecord
        Everything that was sent or should have been, in the order of the trace.
    wall_s : float
        From the beginning of the run to the end of its last answer.
    cpu_s : float
        Processor time of this client meanwhile.
    steady : tuple of float
        Beginning and end, in seconds, of the time during which the load was as asked; see `dspark_loadtest.steady`.
    interrupted : bool
        Whether it was broken off.
    """

    records: list[RequestRecord]
    wall_s: float
    cpu_s: float
    steady: tuple[float, float]
    interrupted: bool = False

    @property
    def cpu_share(self) -> float:
        """Processor time of the client over wall time; 1 is a whole core."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


# The turns of one conversation, or a single request, each with its place in the trace.
Session = Sequence[tuple[int, TraceRequest]]


def sessions_of(requests: Sequence[TraceRequest]) -> list[Session]:
    """Gather the turns of each session, sessions in the order of their first turns."""
    found: dict[object, list[tuple[int, TraceRequest]]] = {}
    for index, request in enumerate(requests):
        key = request.session_id if request.session_id is not None else index
        found.setdefault(key, []).append((index, request))
    return sorted(found.values(), key=lambda turns: turns[0][1].timestamp or 0.0)


def leave_choice(leaving: Leaving, seed: int, index: int) -> dict[str, Any]:
    """Return how request ``index`` leaves: nothing, ``tokens`` or ``seconds``; the same for the same seed."""
    if not leaving.share:
        return {}
    random_ = random.Random(f"{seed} leave {index}")
    if random_.random() >= leaving.share:
        return {}
    if random_.random() < 0.5:
        return {"tokens": random_.randint(0, leaving.tokens)}
    return {"seconds": random_.uniform(0, leaving.seconds)}
