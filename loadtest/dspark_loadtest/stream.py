"""Reads the events of a streamed answer: arrival times, tokens from the server's cumulative usage, its counters."""

from __future__ import annotations

from typing import Any

import orjson

from dspark_loadtest.record import INTERRUPTED, MALFORMED, OK, RequestRecord


class Stream:
    """Takes the events of one answer as they arrive."""

    def __init__(self, record: RequestRecord, *, keep_text: bool) -> None:
        self.record, self.keep_text = record, keep_text
        self.over = False
        self._rest = b""
        self._finished = False

    def take(self, data: bytes, now: float) -> int:
        """Read what has arrived; return the tokens that it brought."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        before = self.record.seen_tokens
        for line in lines:
            if line.startswith(b"data:") and not self.over:
                self._event(line[5:].strip(), now)
        return self.record.seen_tokens - before

    def _event(self, data: bytes, now: float) -> None:
        record = self.record
        if data == b"[DONE]":
            self.over = True
            if record.outcome == INTERRUPTED:
                complete = self._finished and record.completion_tokens
                record.outcome = OK if complete else MALFORMED
                record.message = "" if complete else "the stream ended without a finish reason or without usage"
            return
        try:
            self._chunk(_checked(orjson.loads(data)), data, now)
        except (ValueError, TypeError, OverflowError) as error:
            # Not JSON, or not the shape of a chunk: what the server sent ends this answer, never the run.
            record.outcome, self.over = MALFORMED, True
            record.message = f"{error}: {error_text(data)}"[:300]

    def _chunk(self, chunk: dict[str, Any], data: bytes, now: float) -> None:
        if chunk.get("error"):
            error = chunk["error"]
            code = error.get("code") if isinstance(error, dict) else None
            self.record.outcome, self.record.message = f"stream_{code or 'error'}", error_text(data)
            self.over = True
            return
        self._tokens(chunk, now)

    def _tokens(self, chunk: dict[str, Any], now: float) -> None:
        record = self.record
        usage = chunk.get("usage")
        text = ""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text += delta.get("content") or delta.get("reasoning_content") or ""
            if choice.get("finish_reason"):
                self._finished, record.finish_reason = True, str(choice["finish_reason"])
        if usage:
            self._usage(usage, now, beside_text=bool(chunk.get("choices")))
        elif text:
            self._arrived(now, 0)
        if text and self.keep_text:
            record.text += text
        details = (chunk.get("sglext") or {}).get("spec_tokens_details")
        if isinstance(details, dict):
            record.verify_rounds = int(details.get("spec_verify_ct") or 0)
            record.correct_drafts = int(details.get("spec_num_correct_drafts") or 0)
            record.proposed_drafts = int(details.get("spec_num_proposed_drafts") or 0)
            # Rounds by verified tokens, anchor included; absent where whole blocks are verified.
            lengths = details.get("spec_cap_lens_histogram") or ()
            record.verify_tokens = sum(tokens * rounds for tokens, rounds in enumerate(lengths)) if lengths else None

    def _usage(self, usage: dict[str, Any], now: float, *, beside_text: bool) -> None:
        record = self.record
        total = int(usage.get("completion_tokens") or 0)
        record.went_back |= total < record.completion_tokens
        record.prompt_tokens = int(usage.get("prompt_tokens") or record.prompt_tokens)
        record.completion_tokens = total
        if beside_text and total > record.seen_tokens:
            self._arrived(now, total - record.seen_tokens)
            record.seen_tokens = total

    def _arrived(self, now: float, tokens: int) -> None:
        record = self.record
        record.first = now if record.first is None else record.first
        record.last = now
        record.chunk_at.append(now)
        record.chunk_tokens.append(tokens)

    def cut_off(self) -> None:
        """Note that the connection ended before the stream did."""
        if not self.over:
            self.record.outcome, self.record.message = "disconnect", "the stream ended before its end mark"


def _checked(chunk: Any) -> dict[str, Any]:
    """Return a chunk whose parts are of the kinds that are read; raise `ValueError` that names the one that is not."""
    found: dict[str, Any] = _kind(dict, chunk, "the chunk")
    for name, kind in (("choices", list), ("usage", dict), ("sglext", dict)):
        if found.get(name) is not None:
            _kind(kind, found[name], name)
    for choice in found.get("choices") or ():
        if _kind(dict, choice, "a choice").get("delta") is not None:
            _kind(dict, choice["delta"], "delta")
    return found


def _kind(kind: type, value: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is no {'list' if kind is list else 'object'}")
    return value


def error_text(data: bytes) -> str:
    """Return the message of an error body in OpenAI's form or SGLang's, or its text."""
    text = data.decode(errors="replace").strip()
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return text[:300]
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or text)[:300]
