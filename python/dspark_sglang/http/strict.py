"""What strict parsers of OpenAI's published schema miss in SGLang's answers, or refuse in them."""

from __future__ import annotations

from typing import Any

# Details are objects or absent in the schema, never null.
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")
_NULL_DETAILS = tuple(f',"{name}":null'.encode() for name in _DETAILS)


def mend(document: dict[str, Any]) -> dict[str, Any]:
    """Complete a whole answer in place: ``refusal`` beside content and logprobs, no null details of usage."""
    usage = document.get("usage")
    if isinstance(usage, dict):
        for name in _DETAILS:
            if usage.get(name, 0) is None:
                del usage[name]
    for choice in document.get("choices") or ():
        if isinstance(choice.get("message"), dict):
            choice["message"].setdefault("refusal", None)
            if isinstance(choice.get("logprobs"), dict):
                choice["logprobs"].setdefault("refusal", None)
    return document


def mend_event(event: bytes) -> bytes:
    """Do the same to the usage in an event of a stream that asked for it; null where there is none yet.

    Works on the bytes, since an event is on its way to a client that waits. A quote in generated text is escaped
    in JSON, so no text can look like one of these fields.
    """
    if not event.endswith(b"}\n\n"):
        return event
    if b'"usage":' not in event:
        return event[:-3] + b',"usage":null}\n\n'
    for null in _NULL_DETAILS:
        event = event.replace(null, b"")
    return event
