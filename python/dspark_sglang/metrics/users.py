"""What each user gets: tokens delivered and how fast, request by request.

Exact by construction: whatever a verdict said, a request that ends is settled by the length of its answer. One that is
retracted keeps its place, so that the wait until it runs again counts as time it waited for tokens.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

# A span ends at the first token this long after its start, seconds: long enough that blocks of tokens average out,
# short enough that a stall shows within one scrape or two.
SPAN_S = 2.0
# How often running requests are looked over for spans to end, seconds.
LOOK_S = 0.25


class Place(NamedTuple):
    """A request without a slot: tokens delivered, tokens and time at its span's start, spans so far."""

    delivered: int
    base: int
    start_s: float
    spans: int


class Span(NamedTuple):
    """A stretch of one request's answer; a rest that is not ``whole`` counts in the sums only."""

    tokens: int
    seconds: float
    whole: bool = True


class Users:
    """Delivered tokens by request slot, and the spans in which they came.

    Parameters
    ----------
    slots : int
        Rows of the engine's request pool.

    Attributes
    ----------
    spans : deque of Span
        Ended and not counted yet.
    """

    def __init__(self, slots: int) -> None:
        self.spans: deque[Span] = deque()
        self._delivered = np.zeros(slots, np.int64)
        self._base = np.zeros(slots, np.int64)
        self._start_s = np.zeros(slots)
        self._spans = np.zeros(slots, np.int64)
        self._owner: list[Any] = [None] * slots
        self._slot: dict[str, int] = {}
        self._parked: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
        self._over: WeakSet[Any] = WeakSet()
        self._next_look_s = 0.0

    def is_over(self, request: Any) -> bool:
        """Whether a request has been settled."""
        return request in self._over

    def named(self, rid: str) -> Any:
        """Return the request of that name that has a slot; None if none has."""
        slot = self._slot.get(rid)
        return None if slot is None else self._owner[slot]

    def step(self, slots: np.ndarray, accepted: np.ndarray, now: float) -> None:
        """Add a verdict, int64 [n] accepted drafts and one token more, to the requests in ``slots``."""
        self._delivered[slots] += accepted + 1
        if now >= self._next_look_s:
            self._next_look_s = now + LOOK_S
            for slot in slots[now - self._start_s[slots] >= SPAN_S].tolist():
                tokens = int(self._delivered[slot] - self._base[slot])
                self.spans.append(Span(tokens, float(now - self._start_s[slot])))
                self._base[slot], self._start_s[slot] = self._delivered[slot], now
                self._spans[slot] += 1

    def deliver(self, request: Any, slot: int | None, total: int, now: float) -> int:
        """Settle a running request by the length of its answer; returns the tokens that are new.

        Parameters
        ----------
        slot : int or None
            Where it runs now; a request that had to be taken out may come back elsewhere.
        total : int
            Tokens of its answer so far.
        """
        place = self._leave(request)
        new = total if place is None else total - place.delivered
        # Time begins with the first token.
        place = Place(total, total, now, 0) if place is None else place._replace(delivered=total)
        if slot is None:
            self._parked[request] = place
        else:
            self._enter(request, slot, place)
        return new

    def finish(self, request: Any, total: int, now: float) -> int:
        """Settle a request that has ended; returns the tokens that are new (negative if some were cut off).

        The rest of a span counts as one if it is at least half as long, or the only one with a token. Without a token
        it is a stall that nobody waited out, which counts if it is as long as that.
        """
        place = self._leave(request)
        self._over.add(request)
        if place is None:
            return total
        tokens, seconds = total - place.base, now - place.start_s
        whole = seconds >= SPAN_S / 2 or (tokens > 0 and not place.spans)
        if seconds > 0 and tokens >= 0 and (tokens or whole):
            self.spans.append(Span(tokens, seconds, whole))
        return total - place.delivered

    def _leave(self, request: Any) -> Place | None:
        slot = self._slot.get(request.rid)
        if slot is None or self._owner[slot] is not request:
            return self._parked.pop(request, None)
        del self._slot[request.rid]
        self._owner[slot] = None
        return self._place(slot)

    def _enter(self, request: Any, slot: int, place: Place) -> None:
        previous = self._owner[slot]
        if previous is not None:
            # Its slot has been given away: it was retracted and waits.
            self._parked[previous] = self._place(slot)
            self._slot.pop(previous.rid, None)
        self._owner[slot], self._slot[request.rid] = request, slot
        self._delivered[slot], self._base[slot], self._start_s[slot], self._spans[slot] = place

    def _place(self, slot: int) -> Place:
        return Place(
            int(self._delivered[slot]), int(self._base[slot]), float(self._start_s[slot]), int(self._spans[slot])
        )
