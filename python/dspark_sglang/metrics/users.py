"""What each user gets: tokens delivered and how fast, request by request.

Exact by construction: whatever a verdict said, a request that ends is settled by the length of its answer. One that is
retracted keeps its place, so that the wait until it runs again counts as time it waited for tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from dspark_sglang.metrics.sheet import Sheet

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


class Users:
    """Delivered tokens by request slot, and the spans in which they came.

    Parameters
    ----------
    sheet : Sheet
    slots : int
        Rows of the engine's request pool.
    """

    def __init__(self, sheet: Sheet, slots: int) -> None:
        self._delivered = np.zeros(slots, np.int64)
        self._base = np.zeros(slots, np.int64)
        self._start_s = np.zeros(slots)
        self._spans = np.zeros(slots, np.int64)
        self._owner: list[Any] = [None] * slots
        self._slot: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._parked: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
        self._over: WeakSet[Any] = WeakSet()
        self._next_look_s = 0.0
        self._edges = np.array(sheet.edges["dspark_user_tokens_per_second"])
        self._anchors = np.array(sheet.sla)
        self._histogram = sheet.view("dspark_user_tokens_per_second")
        self._sla = sheet.view("dspark_sla_spans_total")
        self._tokens = sheet.view("dspark_user_tokens_total")
        self._seconds = sheet.view("dspark_user_seconds_total")
        self._met, self._missed = sheet.index("met", "yes"), sheet.index("met", "no")

    def is_over(self, request: Any) -> bool:
        """Whether a request has been settled."""
        return request in self._over

    def step(self, slots: np.ndarray, emitted: np.ndarray, now: float) -> None:
        """Add what a step emitted, int64 [n], to the requests in ``slots``; now and then end spans."""
        self._delivered[slots] += emitted
        if now >= self._next_look_s:
            self._next_look_s = now + LOOK_S
            due = slots[now - self._start_s[slots] >= SPAN_S]
            if due.size:
                self._observe(self._delivered[due] - self._base[due], now - self._start_s[due])
                self._base[due], self._start_s[due] = self._delivered[due], now
                self._spans[due] += 1

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
        if place is None:
            place = Place(0, total, now, 0)
        if slot is not None:
            self._enter(request, slot, place._replace(delivered=total))
        else:
            self._parked[request] = place._replace(delivered=total)
        return total - place.delivered

    def finish(self, request: Any, total: int, now: float) -> int:
        """Settle a request that has ended; returns the tokens that are new (negative if some were cut off).

        The rest of a span counts as one if it is at least half as long, or the only one.
        """
        place = self._leave(request)
        self._over.add(request)
        if place is None:
            return total
        tokens, seconds = total - place.base, now - place.start_s
        if tokens > 0 and seconds > 0:
            if not place.spans or seconds >= SPAN_S / 2:
                self._observe(np.array([tokens]), np.array([seconds]))
            else:
                self._tokens += tokens
                self._seconds += seconds
        return total - place.delivered

    def _leave(self, request: Any) -> Place | None:
        slot = self._slot.pop(request, None)
        if slot is None:
            return self._parked.pop(request, None)
        self._owner[slot] = None
        return self._place(slot)

    def _enter(self, request: Any, slot: int, place: Place) -> None:
        previous = self._owner[slot]
        if previous is not None:
            # Its slot has been given away: it was retracted and waits.
            self._parked[previous] = self._place(slot)
            del self._slot[previous]
        self._owner[slot], self._slot[request] = request, slot
        self._delivered[slot], self._base[slot], self._start_s[slot], self._spans[slot] = place

    def _place(self, slot: int) -> Place:
        return Place(
            int(self._delivered[slot]), int(self._base[slot]), float(self._start_s[slot]), int(self._spans[slot])
        )

    def _observe(self, tokens: np.ndarray, seconds: np.ndarray) -> None:
        rates = tokens / seconds
        # Bucket i holds (edge[i-1], edge[i]]; what meets an anchor exactly has met it.
        np.add.at(self._histogram, np.searchsorted(self._edges, rates, side="left"), 1.0)
        self._histogram[-1] += rates.sum()
        met = (rates >= self._anchors[:, None]).sum(axis=1)
        self._sla[:, self._met] += met
        self._sla[:, self._missed] += len(rates) - met
        self._tokens += tokens.sum()
        self._seconds += seconds.sum()
