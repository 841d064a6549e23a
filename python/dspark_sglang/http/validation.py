"""Say in one sentence which field of a request is wrong, without the server's paths and without the client's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from dspark_sglang.http.errors import ApiError, keeps_its_own_errors

# Of a union of types pydantic complains about each member; the first few say enough.
_SHOWN = 3
_TYPES = ("str", "int", "float", "bool", "dict", "list", "none")
_CONTENT_TYPE = "Unsupported Media Type"


def validation_error(details: Sequence[Any]) -> ApiError:
    """Return the error for pydantic's findings, in their own order.

    Parameters
    ----------
    details : sequence of dict
        ``RequestValidationError.errors()``.
    """
    if not details:
        return ApiError(400, "the request is not valid")
    first = details[0]
    if first.get("type") == "json_invalid":
        reason = (first.get("ctx") or {}).get("error", "it is not JSON")
        return ApiError(400, f"could not parse the JSON body of the request: {reason}", "invalid_json")
    if str(first.get("msg", "")).startswith(_CONTENT_TYPE):
        message = "the body of this request must be JSON: send the header Content-Type: application/json"
        return ApiError(400, message, "unsupported_content_type")
    found: list[str] = []
    for detail in details:
        line = f"{_field(detail) or 'body'}: {_sentence(detail)}"
        if line not in found:
            found.append(line)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    code = "missing_required_parameter" if first.get("type") == "missing" else "invalid_value"
    return ApiError(400, "; ".join(found[:_SHOWN]) + more, code, _field(first) or None)


def add_validation_handler(app: FastAPI) -> None:
    """Answer what FastAPI finds wrong with `validation_error`, but on paths with an error shape of their own."""
    before: Any = app.exception_handlers[RequestValidationError]

    async def answer(request: Request, error: RequestValidationError) -> Response:
        path = request.url.path
        if keeps_its_own_errors(path):
            response: Response = await before(request, error)
            return response
        return validation_error(error.errors()).response(path)

    app.add_exception_handler(RequestValidationError, answer)  # type: ignore[arg-type]


def _field(detail: Any) -> str:
    """Name the field as the client wrote it: what pydantic adds for members of a union is no part of its name."""
    location = detail.get("loc") or ()
    if detail.get("type") == "json_invalid":
        return ""
    names = [str(part) for part in location if part not in ("body", "query", "path", "header")]
    return ".".join(names[:1] + [name for name in names[1:] if not _is_member(name)])


def _is_member(name: str) -> bool:
    """Whether a name is that of a type, model or validator, such as ``list[str]`` or ``ChatCompletionUserMessage``."""
    return name[:1].isupper() or "[" in name or name in _TYPES


def _sentence(detail: Any) -> str:
    return str(detail.get("msg") or "is not valid").removeprefix("Value error, ").rstrip(".")
