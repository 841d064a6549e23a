"""Make of SGLang's several kinds of error bodies the one kind that clients know, with the status that the cause has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from dspark_sglang.http import errors
from dspark_sglang.http.errors import ApiError


@dataclass(frozen=True)
class _Cause:
    """What a message of SGLang stands for: status and code of the answer, and whether trying again can help."""

    pattern: re.Pattern[str]
    status: int
    code: str
    retry: bool | None = None
    param: str | None = None


def _cause(pattern: str, status: int, code: str, retry: bool | None = None, param: str | None = None) -> _Cause:
    return _Cause(re.compile(pattern), status, code, retry, param)


# Upstream: 0.5.23 tells these causes apart in its messages only, and answers every limit of the queue with 503.
# Remove a line when its error carries a code. A test finds each of these sentences in the installed SGLang.
CAUSES = (
    _cause(r"The request queue is full", 429, "queue_full", True),
    _cause(r"aborted by a higher priority request", 429, "preempted", True),
    _cause(r"Request waiting timeout reached", 503, "queue_timeout", True),
    _cause(r"Request running timeout reached", 503, "request_timeout", False),
    _cause(r"Using priority is disabled", 400, "unsupported_parameter", param="priority"),
    _cause(r"longer than the model's context length", 400, "context_length_exceeded"),
    _cause(r"exceeds the model's maximum context length", 400, "context_length_exceeded"),
    _cause(r"Input length \(\d+ tokens\) exceeds", 400, "context_length_exceeded"),
    _cause(r"prompt exceeds the KV memory budget", 400, "context_length_exceeded"),
    _cause(r"Unsupported Media Type", 400, "unsupported_content_type"),
)
_UNSUPPORTED = re.compile(r"\A(?P<name>[a-z_]+)[^:]*: not supported with DSpark")
_INVALID = re.compile(r"\A(?P<name>[a-z]+(_[a-z]+)*) (must|is too|should|cannot) ")
_PROMPT_FIELD = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}


def classify(status: int, body: Any, method: str, path: str, request_id: str) -> ApiError:
    """Return the error that a body of SGLang's means.

    Parameters
    ----------
    status : int
        As SGLang answered.
    body : Any
        Decoded JSON, text, or None where there was none: ``{"error": {...}}``, ``{"error": text}``, a flat
        ``{"object": "error", ...}``, FastAPI's ``{"detail": ...}``.
    method, path, request_id : str
        Of the request; they stand in messages that would be empty or would show the server's inside otherwise.
    """
    given = _given_fields(body)
    message = str(given.get("message") or "")
    for cause in CAUSES:
        if cause.pattern.search(message):
            return _known(cause, message, given, path)
    unsupported = _UNSUPPORTED.match(message)
    if unsupported:
        return ApiError(400, message, "unsupported_parameter", unsupported["name"])
    invalid = _INVALID.match(message) if status == 400 else None
    if invalid:
        return ApiError(400, message, "invalid_value", _text(given.get("param")) or invalid["name"])
    return _by_status(status, message, given, method, path, request_id)


def _given_fields(body: Any) -> dict[str, Any]:
    if isinstance(body, str):
        return {"message": body}
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    if isinstance(error, str):
        return {"message": error}
    if not isinstance(error, dict):
        return {}
    if "message" not in error and "detail" in error:
        return {**error, "message": error["detail"]}
    return error


def _known(cause: _Cause, message: str, given: dict[str, Any], path: str) -> ApiError:
    param = cause.param or _text(given.get("param"))
    if cause.code == "context_length_exceeded":
        param = param or _PROMPT_FIELD.get(path)
    error = ApiError(cause.status, message, cause.code, param)
    if cause.retry is False:
        error.headers["x-should-retry"] = "false"
    return error.retried_later() if cause.retry else error


def _by_status(status: int, message: str, given: dict[str, Any], method: str, path: str, request_id: str) -> ApiError:
    if status == 401:
        return ApiError(401, "the API key is missing or wrong; send it as Authorization: Bearer KEY", "invalid_api_key")
    if status == 403:
        return ApiError(403, "this needs the server's admin key (--admin-api-key)", "admin_key_required")
    if status == 404 and message in ("", "Not Found"):
        return ApiError(404, f"there is nothing at {method} {path}", "unknown_url")
    if status == 405:
        return ApiError(405, f"{path} does not answer {method}", "method_not_supported")
    if status == 500:
        return errors.internal(request_id)
    status = 400 if status == 422 else status
    code, param = _text(given.get("code")), _text(given.get("param"))
    error = ApiError(status, message or _phrase(status), code, param)
    return error.retried_later() if status == 503 else error


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"


def _text(value: Any) -> str | None:
    """Return a code or field name; SGLang's numeric codes repeat the status and say nothing."""
    return value if isinstance(value, str) and value and not value.isdecimal() else None
