"""The part of a run during which the server carried what it was asked to: throughput is measured there alone.

Closed loop: from when every client has had its first token to when the first of them finds nothing more to ask.

Open loop: to the last request that fell due, and from when the server has filled. A server that answers slowly has more
under way, and takes longer to get there; counted from the first request on, it would seem to carry less than a fast one
although both answer everything. It has filled after the time within which nine in ten requests are answered; where that
is more than half of the run, as where the server is asked for more than it can do, from the middle on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dspark_loadtest.record import RequestRecord

FILLED_SHARE = 0.9


def open_loop(records: Sequence[RequestRecord], wall_s: float) -> tuple[float, float]:
    """Return begin and end in seconds of the run; ``records`` are in order of ``due``."""
    sent = [record for record in records if record.sent is not None]
    if len(sent) < 2:
        return 0.0, wall_s
    first, last = sent[0].due, sent[-1].due
    waits = sorted(
        record.end - record.due for record in sent if (record.ok or record.given_up) and record.end is not None
    )
    fill = waits[math.ceil(FILLED_SHARE * len(waits)) - 1] if waits else 0.0
    return min(first + fill, (first + last) / 2), last


def closed_loop(
    records: Sequence[RequestRecord], clients: int, exhausted: float | None, wall_s: float
) -> tuple[float, float]:
    """Return begin and end in seconds of the run; ``exhausted`` is when a client first found nothing more to ask."""
    firsts = sorted(record.first for record in records[:clients] if record.first is not None)
    return (firsts[-1] if firsts else 0.0), exhausted if exhausted is not None else wall_s
