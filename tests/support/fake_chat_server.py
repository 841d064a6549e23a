"""An OpenAI-compatible chat server whose every chunk is scripted; runs in a thread of the test."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

DETAILS = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [0, 1, 1]}


class FakeChatServer:
    """Answers every request with ``pieces`` of text, one chunk each.

    Parameters
    ----------
    pieces : sequence of str
        Text chunks of an answer.
    completion_tokens : int
        As reported in the usage.
    details : dict or None
        SGLang's counters of speculation, in a chunk of their own.
    finish_reason : str or None
        None leaves the chunk out.
    status : int
        Of the reply; not 200: a JSON error.
    on_request : callable, optional
        Called with (number of the request from 0, body); what it returns, if anything, is awaited.
    flush_status : int
        Reply to ``/flush_cache``.
    policies : bool
        Whether it has ``/dspark/policy`` and ``/dspark/state``: every answer then counts two rounds of as many verify
        tokens as a static policy asks for, or three.
    """

    def __init__(
        self,
        pieces: tuple[str, ...] = ("one", " two", " three"),
        *,
        completion_tokens: int = 6,
        details: dict[str, Any] | None = None,
        finish_reason: str | None = "length",
        error_in_stream: str | None = None,
        status: int = 200,
        on_request: Callable[[int, dict[str, Any]], Any] | None = None,
        flush_status: int = 200,
        policies: bool = False,
    ) -> None:
        self.pieces, self.completion_tokens, self.details = pieces, completion_tokens, details
        self.finish_reason, self.error_in_stream, self.status = finish_reason, error_in_stream, status
        self.on_request, self.flush_status = on_request, flush_status
        self.policies = policies
        self.policy: dict[str, Any] = {}
        self.totals = {"rounds": 0, "verify_tokens": 0, "steps": 0, "plain_steps": 0}
        self.bodies: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.in_flight = self.peak = 0

    def __enter__(self) -> FakeChatServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self.policies:
            app.router.add_post("/dspark/policy", self._policy)
            app.router.add_get("/dspark/state", self._state)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _flush(self, _: web.Request) -> web.Response:
        self.calls.append("flush")
        return web.Response(text="said so", status=self.flush_status)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake-model"}]})

    async def _policy(self, request: web.Request) -> web.Response:
        self.policy = await request.json()
        self.calls.append(f"policy {self.policy['policy']}")
        if self.policy.get("verify_drafts", 0) > 7:
            return web.json_response({"error": {"message": "verify_drafts is at most 7"}}, status=400)
        return web.json_response({"policy": self.policy})

    async def _state(self, _: web.Request) -> web.Response:
        self.calls.append("state")
        return web.json_response({"policy": self.policy, "totals": self.totals, "fallbacks": {"stale": 1}})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.calls.append("chat")
        self.bodies.append(body)
        self.totals["rounds"] += 2
        self.totals["steps"] += 2
        self.totals["verify_tokens"] += 2 * (1 + self.policy.get("verify_drafts", 2))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if self.on_request:
                awaitable = self.on_request(len(self.bodies) - 1, body)
                if awaitable is not None:
                    await awaitable
            if self.status != 200:
                return web.json_response({"error": {"message": "top_k is refused"}}, status=self.status)
            return await self._stream(request)
        finally:
            self.in_flight -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        chunks: list[dict[str, Any]] = [_choice({"role": "assistant", "content": ""})]
        chunks += [_choice({"content": piece}) for piece in self.pieces]
        if self.error_in_stream:
            chunks.append({"error": {"message": self.error_in_stream}})
        if self.finish_reason:
            chunks.append(_choice({}, self.finish_reason))
        if self.details:
            chunks.append({"choices": [], "sglext": {"spec_tokens_details": self.details}})
        chunks.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": self.completion_tokens}})
        for chunk in chunks:
            await reply.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await reply.write(b"data: [DONE]\n\n")
        return reply


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}
