"""Asks an OpenAI-compatible chat server and reads its stream: arrival times, and tokens from its cumulative usage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from dspark_loadtest.record import INTERRUPTED, LEFT, OK, TIMEOUT, RequestRecord

API_KEY = "DSPARK_API_KEY"
# SGLang's model gateway names the replica that it chose.
REPLICA_HEADER = "x-smg-routed-worker-id"
_BUSY = ("http_429", "http_503", "stream_429", "stream_503")
_LONGEST_WAIT_S = 60.0
# Stay for the whole answer.
NEVER = -1


@dataclass(frozen=True)
class AskSettings:
    """What every request of a run has in common.

    Attributes
    ----------
    temperature : float
    ignore_eos : bool
        Go on to ``max_tokens``, as long as the trace says; without it, that is the most.
    max_tokens : int
        Of requests whose trace does not say.
    timeout_s : float
        For one attempt, from sending to the end of the stream.
    retries : int
        Attempts after a 429 or 503, each after ``Retry-After`` or a backoff that doubles.
    keep_text : bool
        Keep the answers in memory.
    extra : dict
        Further fields of the body.
    """

    temperature: float = 0.0
    ignore_eos: bool = True
    max_tokens: int = 128
    timeout_s: float = 600.0
    retries: int = 3
    keep_text: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class ChatClient:
    """Sends requests over one session; made inside a running event loop.

    Parameters
    ----------
    url : str
        Base URL without ``/v1``.
    model : str
    settings : AskSettings
    clock : callable
        Seconds; the run's clock.
    on_tokens : callable, optional
        Told the number of tokens of each chunk, for a live display.
    """

    def __init__(
        self,
        url: str,
        model: str,
        settings: AskSettings,
        clock: Callable[[], float],
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        self.url, self.model, self.settings, self.clock = url, model, settings, clock
        self.on_tokens = on_tokens
        headers = {"Content-Type": "application/json"}
        if os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {os.environ[API_KEY]}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=settings.timeout_s),
            headers=headers,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    def body(
        self, messages: list[dict[str, Any]], max_tokens: int | None, extra: dict[str, Any] | None = None
    ) -> bytes:
        """Compose a request. Running usage and counters of speculation are SGLang's; other servers ignore them."""
        settings = self.settings
        values: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens or settings.max_tokens,
            "temperature": settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_spec_tokens_details": True,
        }
        if settings.ignore_eos:
            values["ignore_eos"] = True
        return orjson.dumps({**values, **settings.extra, **(extra or {})})

    async def ask(self, body: bytes, record: RequestRecord, *, leave_after: int = NEVER) -> None:
        """Send one request, again as often as a busy server allows, and fill in ``record``; errors end up there too.

        Parameters
        ----------
        body : bytes
        record : RequestRecord
        leave_after : int
            Break the connection once so many tokens have come; `NEVER` stays.

        Raises
        ------
        asyncio.CancelledError
            If the run ends meanwhile; the record then says ``interrupted``.
        """
        for attempt in range(self.settings.retries + 1):
            wait = await self._attempt(body, record, leave_after)
            if record.outcome not in _BUSY or attempt == self.settings.retries:
                return
            record.retries.append(record.outcome)
            record.outcome = INTERRUPTED
            await asyncio.sleep(min(_LONGEST_WAIT_S, 0.5 * 2**attempt if wait is None else wait))

    async def _attempt(self, body: bytes, record: RequestRecord, leave_after: int) -> float | None:
        """Return what ``Retry-After`` says, in seconds."""
        now = self.clock()
        record.sent = now if record.sent is None else record.sent
        try:
            async with self._session.post(f"{self.url}/v1/chat/completions", data=body) as reply:
                record.replica = reply.headers.get(REPLICA_HEADER, "")
                if reply.status != 200:
                    record.outcome = f"http_{reply.status}"
                    record.message = error_text(await reply.read())
                    return _retry_after(reply.headers.get("Retry-After"))
                stream = _Stream(record, keep_text=self.settings.keep_text)
                async for data in reply.content.iter_any():
                    tokens = stream.take(data, self.clock())
                    if tokens and self.on_tokens:
                        self.on_tokens(tokens)
                    if 0 <= leave_after <= record.seen_tokens and record.first is not None:
                        record.outcome = LEFT
                        break
                    if stream.over:
                        break
                else:
                    stream.cut_off()
                if stream.over:
                    # The last bytes, so that the connection can be used again.
                    await reply.read()
                record.end = self.clock()
        except TimeoutError:
            record.outcome, record.message = TIMEOUT, f"not finished after {self.settings.timeout_s:g} s"
        except aiohttp.ClientConnectorError as error:
            record.outcome, record.message = "connect", str(error)
        except (aiohttp.ClientError, OSError) as error:
            record.outcome, record.message = "disconnect", str(error) or type(error).__name__
        return None


class _Stream:
    """Takes the events of one answer as they arrive."""

    def __init__(self, record: RequestRecord, *, keep_text: bool) -> None:
        self.record, self.keep_text = record, keep_text
        self.over = False
        self._rest = b""
        self._finished = False

    def take(self, data: bytes, now: float) -> int:
        """Read what has arrived; return the tokens that it brought."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        before = self.record.seen_tokens
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)
        return self.record.seen_tokens - before

    def _event(self, data: bytes, now: float) -> None:
        record = self.record
        if data == b"[DONE]":
            self.over = True
            if record.outcome == INTERRUPTED:
                complete = self._finished and record.completion_tokens
                record.outcome = OK if complete else "malformed"
                record.message = "" if complete else "the stream ended without a finish reason or without usage"
            return
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            record.outcome, record.message, self.over = "malformed", error_text(data), True
            return
        if chunk.get("error"):
            error = chunk["error"]
            code = error.get("code") if isinstance(error, dict) else None
            record.outcome, record.message, self.over = f"stream_{code or 'error'}", error_text(data), True
            return
        self._chunk(chunk, now)

    def _chunk(self, chunk: dict[str, Any], now: float) -> None:
        record = self.record
        usage = chunk.get("usage")
        text = ""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text += delta.get("content") or delta.get("reasoning_content") or ""
            if choice.get("finish_reason"):
                self._finished, record.finish_reason = True, choice["finish_reason"]
        if usage:
            self._usage(usage, now, beside_text=bool(chunk.get("choices")))
        elif text:
            self._arrived(now, 0)
        if text and self.keep_text:
            record.text += text
        details = (chunk.get("sglext") or {}).get("spec_tokens_details")
        if isinstance(details, dict):
            record.verify_rounds = int(details.get("spec_verify_ct") or 0)
            record.correct_drafts = int(details.get("spec_num_correct_drafts") or 0)
            record.proposed_drafts = int(details.get("spec_num_proposed_drafts") or 0)
            # Rounds by verified tokens, anchor included; absent where whole blocks are verified.
            lengths = details.get("spec_cap_lens_histogram") or ()
            record.verify_tokens = sum(tokens * rounds for tokens, rounds in enumerate(lengths)) if lengths else None

    def _usage(self, usage: dict[str, Any], now: float, *, beside_text: bool) -> None:
        record = self.record
        total = int(usage.get("completion_tokens") or 0)
        record.went_back |= total < record.completion_tokens
        record.prompt_tokens = int(usage.get("prompt_tokens") or record.prompt_tokens)
        record.completion_tokens = total
        if beside_text and total > record.seen_tokens:
            self._arrived(now, total - record.seen_tokens)
            record.seen_tokens = total

    def _arrived(self, now: float, tokens: int) -> None:
        record = self.record
        record.first = now if record.first is None else record.first
        record.last = now
        record.chunk_at.append(now)
        record.chunk_tokens.append(tokens)

    def cut_off(self) -> None:
        """Note that the connection ended before the stream did."""
        if not self.over:
            self.record.outcome, self.record.message = "disconnect", "the stream ended before its end mark"


def _retry_after(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        # A date; rare enough that the backoff will do.
        return None


def error_text(data: bytes) -> str:
    """Return the message of an error body in OpenAI's form or SGLang's, or its text."""
    text = data.decode(errors="replace").strip()
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return text[:300]
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or text)[:300]
