"""The scripted server itself: chat over SSE with cumulative usage, SGLang's counters, and its ``/metrics``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any
from uuid import uuid4

from aiohttp import web

from dspark_loadtest.mock.script import Script

MODEL = "mock"


class MockServer:
    """Answers by a `Script`; runs until it is stopped, or in a thread of its own as a context manager.

    A chunk is due at a time that follows from the request's arrival alone, so that lateness never adds up. Tokens are
    words ``t0 t1 t2 ...`` numbered within the answer, so that a lost or repeated one shows.

    Parameters
    ----------
    script : Script
    host, port : str, int
        Port 0 takes a free one.
    clock : callable, optional
        Seconds; the event loop's by default.
    """

    def __init__(
        self, script: Script, host: str = "127.0.0.1", port: int = 0, *, clock: Callable[[], float] | None = None
    ) -> None:
        self.script, self.host, self.port = script, host, port
        self._clock = clock
        self.requests = self.finished = self.aborted = self.refused = 0
        self.prompt_tokens = self.generation_tokens = 0
        self.bodies: list[dict[str, Any]] = []
        self.keep_bodies = False
        self._first: float | None = None
        self._slots: asyncio.Semaphore | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Base URL, without ``/v1``."""
        return f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Bind and answer from now on."""
        app = web.Application(client_max_size=1 << 28)
        for probe in ("/health", "/ready"):
            app.router.add_get(probe, self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._slots = asyncio.Semaphore(self.script.concurrency) if self.script.concurrency else None
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port, backlog=4096).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop answering."""
        if self._runner is not None:
            await self._runner.cleanup()

    def __enter__(self) -> MockServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _flush(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": self.script.context}]}
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        values = {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generation_tokens,
            "num_requests_total": self.finished + self.aborted,
            "num_aborted_requests_total": self.aborted,
        }
        lines = [
            f'# TYPE sglang:{name} counter\nsglang:{name}{{model_name="{MODEL}"}} {v}' for name, v in values.items()
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        now = self._now()
        body = await request.json()
        number, self.requests = self.requests, self.requests + 1
        self._first = now if self._first is None else self._first
        if self.keep_bodies:
            self.bodies.append(body)
        failing = self.script.fault != "none" and number % self.script.fault_every == 0
        if failing and self.script.fault in ("429", "503"):
            self.refused += 1
            wait = self.script.retry_after_s
            headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
            error = {"error": {"message": "scripted refusal", "code": int(self.script.fault)}}
            return web.json_response(error, status=int(self.script.fault), headers=headers)
        if self._slots is None:
            return await self._answer(request, body, now, failing)
        async with self._slots:
            return await self._answer(request, body, self._now(), failing)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], begin: float, failing: bool
    ) -> web.StreamResponse:
        answer = _Answer(self.script, body)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        complete = False
        try:
            await reply.prepare(request)
            await reply.write(answer.chunk({"role": "assistant", "content": ""}))
            for after, count in self.script.chunks(answer.length):
                await self._until(begin + after)
                if failing and answer.sent >= self.script.fault_after_tokens:
                    return await self._fail(request, reply)
                await reply.write(answer.text(count))
            await reply.write(answer.end())
            complete = True
            return reply
        finally:
            self.prompt_tokens += answer.prompt_tokens
            self.generation_tokens += answer.sent
            self.finished += complete
            self.aborted += not complete

    async def _fail(self, request: web.Request, reply: web.StreamResponse) -> web.StreamResponse:
        if self.script.fault == "error":
            error = {"error": {"message": "scripted failure", "code": 500}}
            await reply.write(f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode())
        elif request.transport is not None:
            request.transport.abort()
        return reply

    async def _until(self, due: float) -> None:
        """Wait until a chunk is due, or until the stall that it falls into is over."""
        assert self._first is not None
        stalls, ends = self._first + self.script.stall_at_s, self._first + self.script.stall_at_s + self.script.stall_s
        if stalls <= due < ends:
            due = ends
        wait = due - self._now()
        if wait > 0:
            await asyncio.sleep(wait)

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()


class _Answer:
    """The chunks of one answer as bytes."""

    def __init__(self, script: Script, body: dict[str, Any]) -> None:
        self.script = script
        self.limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or script.max_tokens)
        natural = None if body.get("ignore_eos") else script.natural_length
        self.length = self.limit if natural is None else min(self.limit, natural)
        self.reason = "length" if self.length == self.limit else "stop"
        content = " ".join(str(m.get("content") or "") for m in body.get("messages") or ())
        self.prompt_tokens = len(content.split())
        options = body.get("stream_options") or {}
        self.continuous = bool(options.get("continuous_usage_stats")) and script.continuous_usage
        self.include_usage = bool(options.get("include_usage"))
        self.details = bool(body.get("return_spec_tokens_details")) and script.gamma > 0
        self.sent = self.rounds = self.correct = 0
        # What every chunk of OpenAI's has; clients other than ours read no chunk without it.
        self._head = {"id": f"chatcmpl-{uuid4().hex}", "object": "chat.completion.chunk", "created": 0, "model": MODEL}

    def text(self, count: int) -> bytes:
        """Return the next ``count`` tokens."""
        words = "".join(f"t{i} " for i in range(self.sent, self.sent + count))
        if self.sent:
            self.rounds += 1
            self.correct += count - 1
        self.sent += count
        return self.chunk({"content": words})

    def chunk(self, delta: dict[str, str], reason: str | None = None) -> bytes:
        """Return one chunk with a choice."""
        data: dict[str, Any] = {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        if self.continuous:
            data["usage"] = self._usage()
        return b"data: " + json.dumps(data).encode() + b"\n\n"

    def end(self) -> bytes:
        """Return everything after the text."""
        parts = [self.chunk({}, self.reason)]
        if self.details:
            details = {
                "spec_verify_ct": self.rounds,
                "spec_num_correct_drafts": self.correct,
                "spec_num_proposed_drafts": self.rounds * self.script.gamma,
            }
            parts.append(_event({**self._head, "choices": [], "sglext": {"spec_tokens_details": details}}))
        if self.include_usage:
            parts.append(_event({**self._head, "choices": [], "usage": self._usage()}))
        return b"".join([*parts, b"data: [DONE]\n\n"])

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.sent,
            "total_tokens": self.prompt_tokens + self.sent,
        }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
