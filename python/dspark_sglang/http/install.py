"""Put the layer around SGLang's application, before it serves."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from dspark_sglang.http import errors
from dspark_sglang.http.answers import Answers
from dspark_sglang.http.bounds import with_bounded_values, with_checked_form
from dspark_sglang.http.drain import Drain
from dspark_sglang.http.envelope import Envelope, log_request_ids
from dspark_sglang.http.errors import ApiError
from dspark_sglang.http.gate import WARMUP_HEADER, BodyLimit, Gate
from dspark_sglang.http.openai import checked
from dspark_sglang.http.settings import HttpSettings
from dspark_sglang.http.tokens import with_even_batch, with_known_ids
from dspark_sglang.http.validation import add_validation_handler

EXPOSED = ["x-request-id", "retry-after"]


@dataclass
class Layer:
    """The layer of one server process.

    Attributes
    ----------
    drain : Drain
    warmup_key : str
        What the server's own warm-up sends to be let in.
    is_starting : callable
        Whether the server is not warm yet.
    """

    settings: HttpSettings
    drain: Drain
    warmup_key: str
    is_starting: Callable[[], bool]

    def closed(self) -> ApiError | None:
        """Return why no new work is taken, None while it is."""
        if self.drain.draining:
            return errors.draining()
        return errors.starting() if self.is_starting() else None

    def stack(self, app: Any) -> list[Middleware]:
        """Return the application's middlewares, outermost first, with ours among them.

        SGLang's counter of requests and statuses stays outside of what changes a status, its check of API keys inside.
        """
        from sglang.srt.utils.http_middleware_patch import _PureASGIDispatch

        rest = [entry for entry in app.user_middleware if entry.cls is not CORSMiddleware]
        counters = [entry for entry in rest if entry.cls is _PureASGIDispatch]
        rest = [entry for entry in rest if entry not in counters]
        limit = self.settings.limit_bytes
        return [
            Middleware(Envelope, on_lifespan=self._on_lifespan, closing=lambda: self.drain.draining),
            *self._cors(),
            *counters,
            Middleware(Answers, drain=self.drain),
            Middleware(
                Gate, closed=self.closed, is_admin=functools.partial(_is_admin, app), warmup_key=self.warmup_key
            ),
            *([Middleware(BodyLimit, limit_bytes=limit)] if limit is not None else []),
            *rest,
        ]

    def _cors(self) -> list[Middleware]:
        origins = list(self.settings.cors_origins)
        if not origins:
            return []
        # Without credentials: keys travel in a header that a page must set itself.
        return [
            Middleware(
                CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED
            )
        ]

    def _on_lifespan(self) -> None:
        from sglang.srt.entrypoints import http_server

        log_request_ids()
        self.drain.attach(http_server._global_state.tokenizer_manager)


def install(app: Any, settings: HttpSettings) -> Layer:
    """Install the layer on SGLang's application; call it once, before the application serves."""
    from sglang.srt.entrypoints.openai.serving_base import OpenAIServingBase
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
    from sglang.srt.managers.io_struct import EmbeddingReqInput, GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.utils import auth

    layer = Layer(settings, Drain(settings.drain_timeout, end_process), secrets.token_hex(16), _is_starting)
    add_validation_handler(app)
    build = app.build_middleware_stack

    def build_with_layer() -> Any:
        app.user_middleware = layer.stack(app)
        return build()

    # The keys' middleware is added after this, at the launch: so the order is made when the stack is built.
    app.build_middleware_stack = build_with_layer
    OpenAIServingBase.handle_request = checked(OpenAIServingBase.handle_request, settings.any_model)
    # Upstream: 0.5.23 knows its "default" model everywhere but in the Responses API. Remove when it does there.
    OpenAIServingResponses.create_responses = checked(
        OpenAIServingResponses.create_responses, settings.any_model, knows_one_name=True
    )
    TokenizerManager._validate_one_request = with_known_ids(TokenizerManager._validate_one_request)
    TokenizerManager._create_tokenized_object = with_bounded_values(TokenizerManager._create_tokenized_object)
    GenerateReqInput.normalize_batch_and_arguments = with_checked_form(GenerateReqInput.normalize_batch_and_arguments)
    for kind in (GenerateReqInput, EmbeddingReqInput):
        kind.__getitem__ = with_even_batch(kind.__getitem__)
    TokenizerManager.sigterm_watchdog = _after(layer.drain, TokenizerManager.sigterm_watchdog)
    auth.decide_request_auth = _with_ascii_key(auth.decide_request_auth)
    return layer


def warm_up(layer: Layer, execute: Callable[[Any], bool], server_args: Any) -> bool:
    """Run SGLang's warm-up, whose requests carry the key that lets them through the gate."""
    from sglang.srt.entrypoints import http_server

    requests = http_server.requests
    http_server.requests = _Marked(requests, {WARMUP_HEADER.decode(): layer.warmup_key})
    try:
        return execute(server_args)
    finally:
        http_server.requests = requests


def end_process(status: int) -> None:
    """End every child process and this one, without waiting for anything."""
    from sglang.srt.utils import kill_process_tree

    try:
        kill_process_tree(os.getpid(), include_parent=False)
    finally:
        logging.shutdown()
        os._exit(status)


class _Marked:
    """The module ``requests`` with a header in every request that is posted."""

    def __init__(self, module: Any, headers: dict[str, str]) -> None:
        self._module = module
        self._headers = headers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def post(self, url: str, **options: Any) -> Any:
        """Post as the module does."""
        headers = {**(options.pop("headers", None) or {}), **self._headers}
        return self._module.post(url, headers=headers, **options)


def _after(drain: Drain, watchdog: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def sigterm_watchdog(manager: Any) -> None:
        # Upstream: 0.5.23 polls every five seconds, for ever, until no request is left. Remove when it has a deadline.
        await drain.over()
        await watchdog(manager)

    return sigterm_watchdog


def _with_ascii_key(decide: Callable[..., Any]) -> Callable[..., Any]:
    def decide_request_auth(*, authorization_header: str | None, **rest: Any) -> Any:
        # Upstream: 0.5.23 compares in constant time, but text that is not ASCII makes the comparison raise (HTTP 500).
        if authorization_header is not None and not authorization_header.isascii():
            authorization_header = None
        return decide(authorization_header=authorization_header, **rest)

    return decide_request_auth


def _is_starting() -> bool:
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.tokenizer_manager import ServerStatus
    from sglang.srt.runtime_context import get_disagg

    # The warm-up of disaggregated servers goes through another client, which carries no key.
    if get_disagg().disaggregation_mode != "null":
        return False
    return http_server._global_state.tokenizer_manager.server_status == ServerStatus.Starting


def _is_admin(app: Any, scope: Any) -> bool:
    from sglang.srt.utils.auth import AuthLevel, _get_auth_level_from_app_and_scope

    return _get_auth_level_from_app_and_scope(app, scope) is not AuthLevel.NORMAL
