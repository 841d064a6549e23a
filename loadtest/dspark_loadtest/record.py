"""What is kept of one request, and each figure of it defined once.

Times are seconds of the run's clock, which begins at 0 with the run. ``n`` is the server's ``completion_tokens``.

``ttft_s``
    ``first - sent``: the server's part. ``ttft_due_s`` is ``first - due``, what the user of the trace waits.
``tpot_s``
    ``(last - first) / (tokens at last - tokens of the first chunk)``. The first chunk's tokens are left out as their
    time is. None for an answer that came in one chunk.
``tok_s_user``
    ``1 / tpot_s``.
``chunk gap``
    Time between chunks with tokens: what a user sees as a stutter. Never called inter-token latency, since a chunk of
    speculation holds several tokens.
``send lag``
    ``sent - due``: how late this client was. Where it is large, the load was not the trace's.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

# Outcomes. Everything but OK, LEFT and INTERRUPTED is an error, and named by what went wrong.
OK = "ok"
LEFT = "left"
INTERRUPTED = "interrupted"
TIMEOUT = "timeout"
MALFORMED = "malformed"
UNANSWERED = "unanswered"
SKIPPED = "skipped"
UNBROKEN = (OK, LEFT, INTERRUPTED)


@dataclass(slots=True)
class RequestRecord:
    """One request of a run.

    Attributes
    ----------
    index : int
        Its place in the trace.
    category : str
        Kind of text of its prompt.
    due : float
        When it should have been sent: the trace's time by the speed-up, or the end of the turn before it plus its
        delay if that is later. In a closed loop, when it was sent.
    session, turn : str or None, int
        Conversation, and place in it from 0.
    waited : float
        Seconds by which the turn before it moved ``due`` after the trace's time.
    sent, first, last, end : float or None
        First attempt sent; first and last chunk with tokens; end of the stream.
    outcome : str
        ``ok``; ``left`` if this client broke off on purpose; ``interrupted`` by Ctrl-C; or the error:
        ``http_<status>``, ``stream_<code>``, ``disconnect``, ``connect``, ``malformed``; ``timeout`` of one request,
        ``unanswered`` when the run waited no longer; ``skipped``, never sent because the turn before it failed.
    message : str
        What the server said about the error.
    retries : list of str
        Outcomes of the attempts before the last.
    asked_input, asked_output : int or None
        Tokens that the trace asked for.
    prompt_tokens, completion_tokens : int
        Final usage as the server counts; of an answer that broke off, the last that it said.
    seen_tokens : int
        Last cumulative usage beside a chunk of text.
    finish_reason : str
    replica : str
        Who answered, where a gateway says so; of an answer that was sent again, the last.
    chunk_at, chunk_tokens : array
        Arrival and tokens of each chunk with tokens. Tokens are 0 where the server gives no running usage.
    verify_rounds, correct_drafts, proposed_drafts, verify_tokens : int or None
        The server's counters of this request; None if it reports none. Of the drafts that were proposed, those that
        were verified are in ``verify_tokens``, anchors included.
    text : str
        The answer, where it was asked to be kept.
    went_back : bool
        Whether running usage ever fell: a token was lost or counted twice.
    """

    index: int
    category: str = ""
    due: float = 0.0
    session: str | None = None
    turn: int = 0
    waited: float = 0.0
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    end: float | None = None
    outcome: str = INTERRUPTED
    message: str = ""
    retries: list[str] = field(default_factory=list)
    asked_input: int | None = None
    asked_output: int | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seen_tokens: int = 0
    finish_reason: str = ""
    replica: str = ""
    chunk_at: array[float] = field(default_factory=lambda: array("d"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("l"))
    verify_rounds: int | None = None
    correct_drafts: int | None = None
    proposed_drafts: int | None = None
    verify_tokens: int | None = None
    text: str = ""
    went_back: bool = False

    @property
    def ok(self) -> bool:
        """Whether it was answered to its end."""
        return self.outcome == OK

    @property
    def failed(self) -> bool:
        """Whether something went wrong that this client did not do itself."""
        return self.outcome not in UNBROKEN

    @property
    def given_up(self) -> bool:
        """Whether this client waited in vain; what it waited for takes at least as long as that."""
        return self.outcome in (TIMEOUT, UNANSWERED)

    @property
    def send_lag_s(self) -> float | None:
        """See the module."""
        return None if self.sent is None else self.sent - self.due

    @property
    def ttft_s(self) -> float | None:
        """See the module."""
        return None if self.first is None or self.sent is None else self.first - self.sent

    @property
    def ttft_due_s(self) -> float | None:
        """See the module."""
        return None if self.first is None else self.first - self.due

    @property
    def latency_s(self) -> float | None:
        """From sending to the end of the stream; None unless answered."""
        return self.end - self.sent if self.ok and self.end is not None and self.sent is not None else None

    @property
    def latency_due_s(self) -> float | None:
        """From when it was due to the end of the stream; None unless answered."""
        return self.end - self.due if self.ok and self.end is not None else None

    @property
    def tpot_s(self) -> float | None:
        """See the module."""
        if self.first is None or self.last is None or self.last <= self.first:
            return None
        running = bool(self.seen_tokens)
        # Without running usage the first chunk is taken to be the one token that prefill yields.
        after = (self.seen_tokens - self.chunk_tokens[0]) if running else self.completion_tokens - 1
        return (self.last - self.first) / after if after > 0 else None

    @property
    def tok_s_user(self) -> float | None:
        """See the module."""
        tpot = self.tpot_s
        return None if tpot is None else 1 / tpot

    def to_json(self) -> dict[str, Any]:
        """Return everything but text and chunks, with the derived figures."""
        names = (
            *("index", "category", "session", "turn", "due", "waited", "sent", "first", "last", "end", "outcome"),
            *("message", "retries", "asked_input", "asked_output", "prompt_tokens", "completion_tokens", "seen_tokens"),
            *("finish_reason", "replica", "verify_rounds", "correct_drafts", "proposed_drafts", "verify_tokens"),
            *("send_lag_s", "ttft_s", "ttft_due_s", "tpot_s", "tok_s_user", "latency_s", "latency_due_s"),
        )
        return {**{name: _short(getattr(self, name)) for name in names}, "chunks": len(self.chunk_at)}


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
