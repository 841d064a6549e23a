"""What a replay sends: the body of each request of a trace, and the record that its answer is kept in."""

from __future__ import annotations

from typing import Any

from dspark_loadtest.client import ChatClient
from dspark_loadtest.prompts import Composer
from dspark_loadtest.record import RequestRecord
from dspark_loadtest.traces.request import Trace, TraceRequest

Message = dict[str, Any]


class Questions:
    """Makes the requests of one trace.

    Parameters
    ----------
    client : ChatClient
    trace : Trace
    composer : Composer

    Raises
    ------
    LoadtestError
        If the trace asks for a category that there is not; before anything is sent.
    """

    def __init__(self, client: ChatClient, trace: Trace, composer: Composer) -> None:
        self.client, self.composer = client, composer
        for request in trace.requests:
            if request.category is not None:
                self.category(0, request)

    def category(self, index: int, request: TraceRequest) -> str:
        """Return the kind of text of a prompt; none where the trace gives the text itself."""
        return "" if request.input_length is None else self.composer.category(request, index)

    def body(self, index: int, request: TraceRequest, history: list[Message], tokens: int = 0) -> bytes:
        """Compose a request; a later turn is appended to ``history`` and is as long as that leaves of its length."""
        if request.messages is not None:
            messages = [*history, *request.messages]
        elif request.text_input is not None:
            messages = [*history, {"role": "user", "content": request.text_input}]
        elif history and not request.hash_ids:
            rest = max(1, (request.input_length or 1) - tokens)
            messages = [*history, {"role": "user", "content": self.composer.compose(request, index, tokens=rest)}]
        else:
            messages = [{"role": "user", "content": self.composer.compose(request, index)}]
        history[:] = messages
        return self.client.body(messages, request.output_length, request.extra)

    def record(self, index: int, request: TraceRequest, turn: int, due: float, waited: float = 0.0) -> RequestRecord:
        """Make the record of a request that is about to be sent."""
        return RequestRecord(
            index,
            category=self.category(index, request),
            due=due,
            session=request.session_id,
            turn=turn,
            waited=waited,
            asked_input=request.input_length,
            asked_output=request.output_length or self.client.settings.max_tokens,
        )
