"""Answers from an OpenAI-compatible endpoint: many conversations at once, each written down when it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sgl_dspark.data.lines import HALF_CHARACTER, is_text
from sgl_dspark.data.prompts import PromptRecord
from sgl_dspark.data.responses import Exchange, ResponseFile, own_stops
from sgl_dspark.errors import ConfigError, DataError

if TYPE_CHECKING:
    from aiohttp import ClientSession

Log = Callable[[str], None]
_ATTEMPTS = 4
_FIRST_WAIT_S = 0.5
# Answers that a retry may improve: too many requests, and whatever goes wrong on the server's side.
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})


class RefusedError(Exception):
    """The endpoint does not accept this prompt; carries the reason."""


@dataclass(frozen=True)
class Asking:
    """How answers are asked for.

    Attributes
    ----------
    url : str
        Base of the API, with or without ``/v1``.
    model : str
        Name for the ``model`` field; the endpoint's first model when empty.
    temperatures : tuple of float
        Dealt out to the prompts in turn; empty leaves sampling to the endpoint, which takes it from the target's
        generation config.
    sampling : dict
        Further fields of every request, such as ``top_p`` or ``max_tokens``.
    concurrency : int
        Conversations in flight.
    timeout_s : float
        Of one request.
    api_key : str
        Sent as a bearer token when not empty.

    Raises
    ------
    ConfigError
        If ``sampling`` ends answers: a draft would learn to end its turn where the target did not.
    """

    url: str
    model: str = ""
    temperatures: tuple[float, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)
    concurrency: int = 32
    timeout_s: float = 600.0
    api_key: str = ""

    def __post_init__(self) -> None:
        for name in own_stops(self.sampling):
            raise ConfigError(f"--sampling: {name} ends answers without the target's end token; leave it out")

    @property
    def base(self) -> str:
        """The URL that ends in ``/v1``."""
        trimmed = self.url.rstrip("/")
        if not trimmed.startswith(("http://", "https://")):
            raise DataError(f"the endpoint {self.url!r} must start with http:// or https://")
        return trimmed if trimmed.endswith("/v1") else f"{trimmed}/v1"

    def would_ask(self, sampling: dict[str, Any]) -> bool:
        """Whether a request of this run may have these sampling fields."""
        return any(self.sampling_of(index) == sampling for index in range(max(1, len(self.temperatures))))

    def sampling_of(self, index: int) -> dict[str, Any]:
        """Return the sampling fields of the prompt at ``index``."""
        if not self.temperatures:
            return dict(self.sampling)
        return {**self.sampling, "temperature": self.temperatures[index % len(self.temperatures)]}


@dataclass
class Outcome:
    """What a run did: conversations written, prompts that failed with their reasons, new tokens."""

    written: int = 0
    tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def generate(prompts: Sequence[PromptRecord], asking: Asking, sink: ResponseFile, log: Log) -> Outcome:
    """Have every conversation that ``sink`` does not hold yet.

    Parameters
    ----------
    prompts : sequence of PromptRecord
        Further turns of a prompt follow the target's own answers.
    asking : Asking
    sink : ResponseFile
        Receives each conversation as it ends, so that an interruption loses only those in flight.
    log : callable
        Receives a line of progress every few seconds.

    Raises
    ------
    DataError
        If the endpoint cannot be reached.
    """
    numbered = [(index, prompt) for index, prompt in enumerate(prompts) if prompt.id not in sink.done]
    log(f"{len(prompts) - len(numbered)} of {len(prompts)} conversations are on disk, {len(numbered)} to go")
    return asyncio.run(_run(numbered, asking, sink, log))


async def _run(numbered: Sequence[tuple[int, PromptRecord]], asking: Asking, sink: ResponseFile, log: Log) -> Outcome:
    outcome = Outcome()
    async with _session(asking) as session:
        model = asking.model or await _first_model(session, asking)
        queue = iter(numbered)
        progress = _Progress(len(numbered), log)

        async def worker() -> None:
            for index, prompt in queue:
                try:
                    exchange = await _converse(session, asking, model, index, prompt)
                except RefusedError as refusal:
                    outcome.failed[prompt.id] = str(refusal)
                else:
                    sink.add(exchange)
                    outcome.written += 1
                    outcome.tokens += exchange.completion_tokens
                progress.report(outcome)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(asking.concurrency, len(numbered))):
                tasks.create_task(worker())
        progress.report(outcome, last=True)
    return outcome


@asynccontextmanager
async def _session(asking: Asking) -> AsyncIterator[ClientSession]:
    import aiohttp

    headers = {"Authorization": f"Bearer {asking.api_key}"} if asking.api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=asking.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield session


async def _first_model(session: ClientSession, asking: Asking) -> str:
    import aiohttp

    url = f"{asking.base}/models"
    try:
        async with session.get(url) as answer:
            answer.raise_for_status()
            listed = (await answer.json())["data"]
            return str(listed[0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError) as error:
        cause = str(error) or type(error).__name__
        raise DataError(f"cannot ask {url}: {cause}; is this the base URL of an API, and is the server up?") from error


async def _converse(session: ClientSession, asking: Asking, model: str, index: int, prompt: PromptRecord) -> Exchange:
    sampling = asking.sampling_of(index)
    messages: list[dict[str, str]] = []
    reasons: list[str] = []
    tokens = 0
    for turn in prompt.turns:
        messages.append({"role": "user", "content": turn})
        body = await _post(session, asking, {"model": model, "messages": messages, **sampling})
        text, reason, count = _read_answer(body)
        messages.append({"role": "assistant", "content": text})
        reasons.append(reason)
        tokens += count
        # A reply that was cut off is not what a user would answer to.
        if reason != "stop":
            break
    return Exchange(prompt.id, prompt.kind, messages, reasons, sampling, model, tokens)


def _read_answer(body: dict[str, Any]) -> tuple[str, str, int]:
    try:
        choice = body["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
        count = int(body.get("usage", {}).get("completion_tokens", 0))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RefusedError(f"the endpoint's answer is no chat completion ({error!r})") from error
    if not isinstance(text, str) or not text.strip():
        raise RefusedError("the endpoint answered with nothing")
    if not is_text(text):
        raise RefusedError(f"the answer {HALF_CHARACTER}")
    return text, str(reason), count


async def _post(session: ClientSession, asking: Asking, body: dict[str, Any]) -> dict[str, Any]:
    import aiohttp

    wait, trouble = _FIRST_WAIT_S, ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(wait)
            wait *= 4
        try:
            async with session.post(f"{asking.base}/chat/completions", json=body) as answer:
                if answer.status == 200:
                    found: dict[str, Any] = await answer.json()
                    return found
                trouble = f"HTTP {answer.status}: {(await answer.text())[:300]}"
                if answer.status not in _RETRIED:
                    raise RefusedError(trouble)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            trouble = f"{type(error).__name__}: {error}"
    raise RefusedError(f"{trouble} ({_ATTEMPTS} attempts)")


class _Progress:
    """Says every few seconds how far the run is, how fast, and how long it will take."""

    def __init__(self, total: int, log: Log, every_s: float = 10.0) -> None:
        self._total, self._log, self._every = total, log, every_s
        self._started = self._said = time.monotonic()

    def report(self, outcome: Outcome, *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self._said < self._every:
            return
        self._said, spent = now, max(now - self._started, 1e-9)
        done = outcome.written + len(outcome.failed)
        left = (self._total - done) * spent / max(done, 1)
        failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
        self._log(
            f"{done}/{self._total} conversations{failed}, {outcome.tokens} new tokens, "
            f"{outcome.tokens / spent:.0f} tok/s, {left:.0f} s left"
        )
