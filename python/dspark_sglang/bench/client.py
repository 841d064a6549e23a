"""Streaming client of an OpenAI-compatible chat API: sends prompts in a closed loop and takes the times."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from dspark_sglang.bench import BenchError
from dspark_sglang.bench.metrics import RequestResult
from sgl_dspark.data.prompt_set import Prompt

WARM_UP_TOKENS = 16
_WARM_UP = Prompt("warm-up", ({"role": "user", "content": "Count from one to thirty in words."},))
_FLUSH_TIMEOUT_S = 30
# Its multiples modulo 1 fill [0, 1) evenly, however many there are.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class RequestSettings:
    """What every request asks for.

    Attributes
    ----------
    max_tokens : int
        Longest answer.
    length_spread : float
        In [0, 1). Requests may each run to a length of their own, evenly spread from ``(1 - length_spread) *
        max_tokens`` to ``max_tokens``. At 0, answers that reach the limit end in the same step, and the next prompts
        share one prefill: clients never do that, and it hides what prefills cost the engine whose requests keep step.
    temperature : float
    ignore_eos : bool
        Go on to the limit.
    timeout_s : float
        For one request, first byte to last.
    extra : dict
        Further fields of the request body.
    """

    max_tokens: int = 96
    temperature: float = 0.0
    ignore_eos: bool = False
    timeout_s: float = 600.0
    extra: dict[str, Any] = field(default_factory=dict)
    length_spread: float = 0.0

    def limit(self, index: int) -> int:
        """Return the longest answer of the request of that number: the same for every server and round."""
        return max(1, round(self.max_tokens * (1.0 - self.length_spread * (index * _GOLDEN % 1.0))))

    def body(self, model: str, prompt: Prompt, index: int = 0) -> dict[str, Any]:
        """Compose the request. ``return_spec_tokens_details`` is SGLang's: per-request counters in the last chunk."""
        body = {
            "model": model,
            "messages": list(prompt.messages),
            "max_tokens": self.limit(index),
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_spec_tokens_details": True,
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        return {**body, **self.extra}


Clock = Callable[[], float]


async def measure_level(
    url: str,
    prompts: Sequence[Prompt],
    concurrency: int,
    settings: RequestSettings,
    *,
    flush: bool,
    warm_up: bool = True,
    clock: Clock = time.perf_counter,
    progress: Callable[[int], None] | None = None,
) -> list[RequestResult]:
    """Warm the server up, empty its prefix cache, then answer ``prompts`` with ``concurrency`` requests in flight.

    Parameters
    ----------
    url : str
        Base URL without ``/v1``.
    prompts : sequence of Prompt
    concurrency : int
        Workers; each sends its next request when its previous one has ended.
    settings : RequestSettings
    flush : bool
        Empty the prefix cache after warming up (SGLang's ``/flush_cache``).
    warm_up : bool
        Answer a short question in each worker first; not measured.
    clock : callable
        Monotonic seconds.
    progress : callable, optional
        Told after each answer how many there are.

    Returns
    -------
    list of RequestResult
        In the order of ``prompts``.

    Raises
    ------
    BenchError
        If a request fails; the others are cancelled.
    """
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=settings.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        try:
            model = await _model_name(session, url)
            if warm_up:
                warm = [(0, _WARM_UP)] * concurrency
                warm_settings = replace(settings, max_tokens=WARM_UP_TOKENS)
                await _closed_loop(session, url, model, warm, concurrency, warm_settings, clock)
            if flush:
                async with session.post(f"{url}/flush_cache", params={"timeout": _FLUSH_TIMEOUT_S}) as reply:
                    if reply.status != 200:
                        raise BenchError(f"{url} did not empty its prefix cache: {(await reply.text()).strip()}")
            numbered = list(enumerate(prompts))
            return await _closed_loop(session, url, model, numbered, concurrency, settings, clock, progress)
        except (aiohttp.ClientError, OSError) as error:
            raise BenchError(f"the connection to {url} failed: {error or type(error).__name__}") from error


async def _closed_loop(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    prompts: Sequence[tuple[int, Prompt]],
    concurrency: int,
    settings: RequestSettings,
    clock: Clock,
    progress: Callable[[int], None] | None = None,
) -> list[RequestResult]:
    waiting = iter(prompts)
    results: list[RequestResult] = []

    async def work() -> None:
        for index, prompt in waiting:
            body = settings.body(model, prompt, index)
            results.append(await request(session, url, body, index, clock=clock))
            if progress:
                progress(len(results))

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(prompts)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return sorted(results, key=lambda r: r.prompt)


async def _model_name(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as reply:
        if reply.status != 200:
            return "default"
        listed = (await reply.json()).get("data") or []
    return str(listed[0]["id"]) if listed else "default"


async def request(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], index: int, *, clock: Clock = time.perf_counter
) -> RequestResult:
    """Send one request and read its stream to the end.

    Raises
    ------
    BenchError
        If the server refuses it, reports an error in the stream, takes too long, or leaves out the finish reason or
        the usage.
    """
    start = clock()
    stream = _Stream(start)
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
            if reply.status != 200:
                raise BenchError(f"{url} answered {reply.status}: {_error_text(await reply.text())}")
            async for chunk in _chunks(reply):
                stream.take(chunk, clock())
    except TimeoutError as error:
        raise BenchError(f"{url} did not finish a request in time; raise --timeout") from error
    return stream.result(url, index)


async def _chunks(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in reply.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)


class _Stream:
    """What the chunks of one answer have said so far."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.first: float | None = None
        self.end: float | None = None
        self.finish_reason = ""
        self.text: list[str] = []
        self.usage: dict[str, Any] = {}
        self.details: dict[str, Any] = {}

    def take(self, chunk: dict[str, Any], now: float) -> None:
        if chunk.get("error"):
            raise BenchError(f"the server broke off an answer: {_error_text(json.dumps(chunk))}")
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text = delta.get("content") or delta.get("reasoning_content")
            if text:
                self.first = now if self.first is None else self.first
                self.text.append(text)
            if choice.get("finish_reason"):
                self.finish_reason, self.end = choice["finish_reason"], now
        self.usage = chunk.get("usage") or self.usage
        self.details = (chunk.get("sglext") or {}).get("spec_tokens_details") or self.details

    def result(self, url: str, index: int) -> RequestResult:
        if self.end is None or not self.usage:
            lacking = "a finish reason" if self.end is None else "the token usage"
            raise BenchError(f"{url} ended an answer without {lacking}; is it an OpenAI-compatible chat server?")
        if self.finish_reason not in ("stop", "length"):
            raise BenchError(f"{url} ended an answer with {self.finish_reason!r} instead of 'stop' or 'length'")
        rounds = self.details.get("spec_verify_ct")
        return RequestResult(
            prompt=index,
            start=self.start,
            # An answer of special tokens only has no text; its first token is as late as its last can tell.
            first=self.end if self.first is None else self.first,
            end=self.end,
            prompt_tokens=int(self.usage.get("prompt_tokens") or 0),
            completion_tokens=int(self.usage.get("completion_tokens") or 0),
            finish_reason=self.finish_reason,
            text="".join(self.text),
            verify_rounds=rounds,
            correct_drafts=self.details.get("spec_num_correct_drafts") if rounds is not None else None,
            histogram=tuple(self.details.get("spec_correct_drafts_histogram") or ()),
        )


def _error_text(text: str) -> str:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return text.strip()[:500]
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or text).strip()[:500]
