"""What ``dspark calibrate`` asks a server over HTTP: its recorded rounds, its state and its policy."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sgl_dspark.calibration.records import RecordSet, from_wire
from sgl_dspark.errors import DataError, DsparkError
from sgl_dspark.server_keys import HINT, authorization

_TIMEOUT_S = 60


class ServerError(DsparkError):
    """A server refused or failed a question about DSpark; names the address and what it said."""


@dataclass(frozen=True)
class Rounds:
    """Rounds that a server has recorded.

    Attributes
    ----------
    records : RecordSet
    next_round : int
        Where to go on.
    lost : int
        Rounds in between that the server had already overwritten.
    """

    records: RecordSet
    next_round: int
    lost: int


@dataclass(frozen=True)
class Server:
    """A server at a base URL, without ``/v1``."""

    url: str

    def rounds(self, after: int) -> Rounds:
        """Read all recorded rounds from number ``after`` on, in as many answers as the server gives them.

        Raises
        ------
        ServerError
            If the server does not record rounds.
        DataError
            If they cannot be read.
        """
        parts: list[RecordSet] = []
        position = after
        while True:
            records, following = from_wire(self.ask(f"/dspark/records?after={position}"))
            if following < position:
                # It has not come so far yet, so it is not the server that was asked before.
                raise DataError(f"{self.url} has been restarted while rounds were collected; start again")
            parts.append(records)
            position = following
            if not len(records):
                break
        joined = RecordSet.concat(parts)
        return Rounds(joined, position, position - after - len(joined))

    @contextlib.contextmanager
    def verifying_in_full(self) -> Iterator[None]:
        """Verify whole blocks meanwhile, so that every slot is observed; the policy is restored afterwards."""
        before = self.policy()
        self.ask("/dspark/policy", {"policy": "static", "verify_drafts": self.gamma()})
        try:
            yield
        finally:
            self.ask("/dspark/policy", before)

    def policy(self) -> dict[str, Any]:
        """Return the policy in force, in the form in which it can be set again."""
        shown = self._model_state().get("policy")
        if isinstance(shown, str):
            return {"policy": shown}
        if not isinstance(shown, dict):
            raise ServerError(f"{self.url}/dspark/state shows no policy; is it a server of this version?")
        return shown

    def gamma(self) -> int:
        """Return the drafts per block of the draft that is served."""
        model = self._model_state().get("model")
        if not isinstance(model, dict) or not isinstance(model.get("gamma"), int):
            raise ServerError(f"{self.url}/dspark/state does not say gamma; is it a server of this version?")
        return int(model["gamma"])

    def _model_state(self) -> dict[str, Any]:
        state = self.ask("/dspark/state")
        replicas = state.get("replicas")
        if isinstance(replicas, list) and replicas:
            return dict(replicas[0])
        return state

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """GET, or POST if there is a body; the answer is a JSON object.

        Raises
        ------
        ServerError
            If there is no such answer.
        """
        headers = {"Content-Type": "application/json", **authorization(path)}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                found = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip()[:300]
            hint = f"; {HINT}" if error.code in (401, 403) else ""
            raise ServerError(f"{self.url}{path} answered {error.code}: {said or error.reason}{hint}") from error
        except (OSError, ValueError) as error:
            raise ServerError(f"{self.url}{path} failed: {error}") from error
        if not isinstance(found, dict):
            raise ServerError(f"{self.url}{path} did not answer with a JSON object; is it a DSpark server?")
        return found
