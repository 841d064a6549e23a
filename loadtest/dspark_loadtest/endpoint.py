"""What a load test asks a server besides chat: model, context, token counts, metrics, DSpark's state and policy."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dspark_loadtest.errors import LoadtestError, StatusError
from sgl_dspark.server_keys import HINT, authorization

_TIMEOUT_S = 60
# A server that still runs or aborts something does not empty its cache: SGLang waits so long itself, and is then asked
# again.
_FLUSH_WAIT_S, _FLUSH_POLL_S, _IDLE_WITHIN_S = 5, 0.5, 30.0
# SGLang that is busy, and its gateway where some or all of the replicas refused.
_NOT_IDLE = (400, 206)
_TOKENIZE_AT_ONCE = 4096


@dataclass(frozen=True)
class Endpoint:
    """A server at a base URL, without ``/v1``."""

    url: str

    def model(self) -> tuple[str, int | None]:
        """Return the served model's name and its context in tokens, where it says so.

        Raises
        ------
        LoadtestError
            If no server answers.
        """
        listed = (self.ask("/v1/models").get("data") or [{}])[0]
        context = listed.get("max_model_len")
        return str(listed.get("id") or "default"), int(context) if context else None

    def count_tokens(self, texts: Sequence[str]) -> list[int] | None:
        """Count tokens with the server's own tokenizer; None if it does not offer that."""
        counts: list[int] = []
        try:
            for start in range(0, len(texts), _TOKENIZE_AT_ONCE):
                part = list(texts[start : start + _TOKENIZE_AT_ONCE])
                counts += self.ask("/tokenize", {"prompt": part, "add_special_tokens": False})["count"]
        except (LoadtestError, KeyError, TypeError):
            return None
        return counts if len(counts) == len(texts) else None

    def template_tokens(self) -> int | None:
        """Return the tokens that the chat template adds to one message; None if the server does not tell."""
        try:
            whole = self.ask("/tokenize", {"messages": [{"role": "user", "content": "word"}]})["count"]
            alone = self.ask("/tokenize", {"prompt": "word", "add_special_tokens": False})["count"]
        except (LoadtestError, KeyError):
            return None
        return max(0, int(whole) - int(alone))

    def metrics(self) -> dict[str, float] | None:
        """Return SGLang's counters by name, labels added up; None if it exports none (``--enable-metrics``).

        SGLang's model gateway has no ``/metrics`` there; it hands on those of its replicas at ``/engine_metrics``.
        """
        return self._counters("/metrics") or self._counters("/engine_metrics")

    def _counters(self, path: str) -> dict[str, float] | None:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=_TIMEOUT_S) as reply:
                text = reply.read().decode()
            families = list(text_string_to_metric_families(text))
        except (OSError, ValueError):
            return None
        found: dict[str, float] = {}
        for family in families:
            for sample in family.samples:
                if family.type == "counter" and sample.name.endswith("_total"):
                    name = sample.name.removeprefix("sglang:")
                    found[name] = found.get(name, 0.0) + sample.value
        return found if "generation_tokens_total" in found else None

    def state(self) -> dict[str, Any] | None:
        """Return ``/dspark/state``; None if no DSpark worker serves here."""
        try:
            return self.ask("/dspark/state")
        except LoadtestError:
            return None

    def totals(self) -> dict[str, float] | None:
        """Return the counts of ``/dspark/state``, replicas added up; None without a DSpark worker."""
        state = self.state()
        if state is None:
            return None
        counts: dict[str, float] = {}
        for replica in state.get("replicas") or [state]:
            for name, value in (replica.get("totals") or {}).items():
                if isinstance(value, int | float):
                    counts[name] = counts.get(name, 0) + value
        return counts

    def set_policy(self, body: dict[str, Any]) -> None:
        """Choose how much is verified; raise `LoadtestError` if the server refuses."""
        self.ask("/dspark/policy", body)

    def flush_cache(
        self, *, wait: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Empty the prefix cache, asking again while the server is busy.

        Raises
        ------
        LoadtestError
            If the server refuses, or has not been idle for half a minute.
        """
        deadline = clock() + _IDLE_WITHIN_S
        while True:
            try:
                self._open(f"/flush_cache?timeout={_FLUSH_WAIT_S}", b"")
                return
            except StatusError as error:
                if error.status not in _NOT_IDLE or clock() >= deadline:
                    raise
            wait(_FLUSH_POLL_S)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """GET, or POST if there is a body; the answer is a JSON object.

        Raises
        ------
        LoadtestError
            If there is no such answer; names the address and what was said.
        """
        raw = self._open(path, None if body is None else json.dumps(body).encode())
        try:
            found = json.loads(raw)
        except ValueError as error:
            raise LoadtestError(f"{self.url}{path} did not answer with JSON: {error}") from error
        if not isinstance(found, dict):
            raise LoadtestError(f"{self.url}{path} did not answer with a JSON object")
        return found

    def _open(self, path: str, data: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json", **authorization(path)}
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                raw = bytes(reply.read())
                if reply.status == 200:
                    return raw
                said = raw.decode(errors="replace").strip()[:300]
                raise StatusError(f"{self.url}{path} answered {reply.status}: {said}", reply.status)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip()[:300]
            hint = f"; {HINT}" if error.code in (401, 403) else ""
            message = f"{self.url}{path} answered {error.code}: {said or error.reason}{hint}"
            raise StatusError(message, error.code) from error
        except (OSError, ValueError) as error:
            raise LoadtestError(f"{self.url}{path} failed: {error}; is the server running?") from error
