"""A small application in SGLang's manner, with the HTTP layer around it as the server puts it together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from dspark_sglang.http import errors
from dspark_sglang.http.answers import Answers
from dspark_sglang.http.context import context_of
from dspark_sglang.http.drain import Drain
from dspark_sglang.http.envelope import Envelope
from dspark_sglang.http.errors import ApiError
from dspark_sglang.http.gate import BodyLimit, Gate
from dspark_sglang.http.validation import add_validation_handler

LIMIT_BYTES, WARMUP_KEY = 1000, "warm"
CHUNK = b'data: {"choices":[]}\n\n'
QUEUE_FULL = "The request queue is full."


class Chat(BaseModel):
    """A request; ``act`` says what the application does with it."""

    act: str = ""
    temperature: float = Field(default=1.0, ge=0.0)
    messages: list[dict[str, str]] = []


class Manager:
    """SGLang's tokenizer manager as far as draining uses it."""

    class signal_handler_class:  # noqa: N801 - SGLang's own name
        def __init__(self, manager: Any) -> None:
            self.manager = manager

    def __init__(self) -> None:
        self.rid_to_state: dict[str, Any] = {}
        self.gracefully_exit = False
        self.aborted = False

    def auto_create_handle_loop(self) -> None: ...

    def abort_request(self, abort_all: bool) -> None:
        self.aborted = abort_all


@dataclass
class World:
    """The application, and what its test turns."""

    app: Any
    drain: Drain
    ended: list[int]
    closed: ApiError | None = None
    held: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: list[str] = field(default_factory=list)


def build(timeout_s: float = 30.0) -> World:
    """Make it; ``world.held`` holds up what was asked to ``hang``."""
    inner, ended = FastAPI(), []
    world = World(None, Drain(timeout_s, ended.append), ended)
    _add_routes(inner, world)
    add_validation_handler(inner)
    gate = {"closed": lambda: world.closed, "is_admin": lambda scope: scope["path"] == "/admin"}
    inner.user_middleware = [
        Middleware(Envelope, on_lifespan=lambda: None, closing=lambda: world.drain.draining),
        Middleware(Answers, drain=world.drain),
        Middleware(Gate, warmup_key=WARMUP_KEY, **gate),
        Middleware(BodyLimit, limit_bytes=LIMIT_BYTES),
    ]
    world.app = inner
    return world


def _add_routes(app: FastAPI, world: World) -> None:
    @app.exception_handler(RequestValidationError)
    async def flat(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"object": "error", "message": str(error.errors()), "code": 400}, 400)

    @app.post("/v1/messages")
    @app.post("/v1/chat/completions")
    @app.post("/v1/responses")
    @app.post("/generate")
    async def chat(request: Chat, raw: Request) -> Response:
        return await _act(request.act, raw, world)

    @app.post("/admin")
    @app.post("/free")
    async def admin(raw: Request) -> Response:
        await raw.body()
        return PlainTextResponse("done")

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=503)


async def _act(act: str, raw: Request, world: World) -> Response:
    flat = {"object": "error", "message": QUEUE_FULL, "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}
    if act == "queue full":
        return JSONResponse(flat, 503)
    if act == "raise queue full":
        raise HTTPException(503, QUEUE_FULL)
    if act == "crash":
        raise RuntimeError("secret /path/of/the/server")
    if act == "whole crash":
        return JSONResponse({**flat, "message": "Internal server error: secret", "code": 500}, 500)
    if act == "hang":
        return JSONResponse(await _hang(world))
    if act.startswith("stream"):
        context = context_of(raw.scope)
        assert context is not None
        context.null_usage = act == "stream usage"
        return StreamingResponse(_events(act, flat, world), media_type="text/event-stream")
    return JSONResponse({"ok": True})


async def _hang(world: World) -> str:
    try:
        await world.held.wait()
    except asyncio.CancelledError:
        world.cancelled.append("request")
        raise
    return "late"


async def _events(act: str, flat: dict[str, Any], world: World) -> AsyncIterator[bytes]:
    encoded = errors._compact({"error": flat})
    if act == "stream refused":
        yield b"data: " + encoded + b"\n\n"
    elif act == "stream aborted":
        reason = {"type": "abort", "status_code": 503, "message": QUEUE_FULL}
        yield b"data: " + errors._compact({"text": "", "meta_info": {"finish_reason": reason}}) + b"\n\n"
    else:
        yield CHUNK
    if act == "stream fails":
        yield b"data: " + encoded + b"\n\n"
    if act == "stream usage":
        yield b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
    if act == "stream crashes":
        raise RuntimeError("secret")
    if act == "stream hangs":
        yield errors._compact({"late": await _hang(world)})
    yield b"data: [DONE]\n\n"
