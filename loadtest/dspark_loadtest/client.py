"""Asks an OpenAI-compatible chat server and reads its stream: arrival times, and tokens from its cumulative usage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from dspark_loadtest.record import INTERRUPTED, LEFT, MALFORMED, TIMEOUT, RequestRecord
from dspark_loadtest.stream import Stream, error_text
from sgl_dspark.server_keys import authorization

CHAT = "/v1/chat/completions"
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
        Attempts after a 429 or 503 that comes before the first token, each after ``Retry-After`` or a backoff that
        doubles.
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
        headers = {"Content-Type": "application/json", **authorization(CHAT)}
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

        Once a token has come it is not sent again: one record would hold parts of two answers, and who reads a stream
        has read the first of them.

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
            if record.outcome not in _BUSY or record.first is not None or attempt == self.settings.retries:
                return
            record.retries.append(record.outcome)
            record.outcome, record.end = INTERRUPTED, None
            record.prompt_tokens = record.completion_tokens = 0
            await asyncio.sleep(min(_LONGEST_WAIT_S, 0.5 * 2**attempt if wait is None else wait))

    async def _attempt(self, body: bytes, record: RequestRecord, leave_after: int) -> float | None:
        """Return what ``Retry-After`` says, in seconds."""
        now = self.clock()
        record.sent = now if record.sent is None else record.sent
        try:
            async with self._session.post(f"{self.url}{CHAT}", data=body) as reply:
                record.replica = reply.headers.get(REPLICA_HEADER, "")
                if reply.status != 200:
                    record.outcome = f"http_{reply.status}"
                    record.message = error_text(await reply.read())
                    return _retry_after(reply.headers.get("Retry-After"))
                stream = Stream(record, keep_text=self.settings.keep_text)
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
                if stream.over and record.outcome != MALFORMED:
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


def _retry_after(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        # A date; rare enough that the backoff will do.
        return None
