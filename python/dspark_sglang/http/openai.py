"""What of OpenAI's API is decided once SGLang has parsed a request: its model, and how its stream reports usage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse

from dspark_sglang.http.context import context_of
from dspark_sglang.http.errors import ApiError
from dspark_sglang.http.models import adapters_of, resolve_adapter
from dspark_sglang.http.strict import mend
from dspark_sglang.http.tokens import check_detokenize

_MENDED = ("chat.completion", "text_completion")
Handler = Callable[[Any, Any, Any], Awaitable[Any]]


def checked(handler: Handler, any_model: bool, *, knows_one_name: bool = False) -> Handler:
    """Wrap a handler of SGLang's: ``handler(self, request, raw_request)`` with a ``tokenizer_manager``.

    The result answers 404 to unknown models unless ``any_model``, and hands on what the request wants of its stream.
    A handler that ``knows_one_name`` is given that name in place of the others that the server answers to.
    """

    async def handle(self: Any, request: Any, raw_request: Any = None) -> Any:
        try:
            _use_adapter(request, self.tokenizer_manager, any_model)
            check_detokenize(request, self.tokenizer_manager.model_config.vocab_size)
        except ApiError as error:
            return error.response(_path(raw_request))
        if knows_one_name:
            request.model = self.tokenizer_manager.served_model_name
        context = context_of(getattr(raw_request, "scope", None))
        if context is None:
            # Not through HTTP.
            return await handler(self, request, raw_request)
        context.null_usage = _wants_usage_at_the_end(request)
        result = await handler(self, request, raw_request)
        if getattr(result, "object", None) not in _MENDED:
            return result
        return JSONResponse(mend(result.model_dump(mode="json", by_alias=True)))

    return handle


def _use_adapter(request: Any, manager: Any, any_model: bool) -> None:
    model = getattr(request, "model", None)
    served = manager.served_model_name
    if not isinstance(model, str):
        return
    try:
        adapter = resolve_adapter(model, served, adapters_of(manager))
    except ApiError:
        if any_model:
            return
        raise
    if adapter is not None and getattr(request, "lora_path", adapter) is None:
        # Upstream: 0.5.23 lists adapters as models of their own, but serves the base to who asks for one without the
        # base's name. Remove when it resolves the names that it lists.
        request.lora_path = adapter


def _wants_usage_at_the_end(request: Any) -> bool:
    options = getattr(request, "stream_options", None)
    return bool(getattr(request, "stream", False) and options is not None and options.include_usage)


def _path(raw_request: Any) -> str:
    scope = getattr(raw_request, "scope", None)
    return str(scope["path"]) if isinstance(scope, dict) else ""
