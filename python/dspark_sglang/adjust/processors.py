"""Custom logit processors at every row of a block: each sees the answer as it stands at its row.

They are code of a client's: one that raises, or gives what is no logits, ends the request that sent it, no other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

logger = logging.getLogger(__name__)

# Where SGLang puts the request among the parameters that it hands to a processor.
_REQUEST = "__req__"


class RequestAtRow:
    """A request of SGLang's whose answer has the drafts before a row appended."""

    def __init__(self, request: Any, output_ids: list[int]) -> None:
        self._request = request
        self.output_ids = output_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


@dataclass(frozen=True)
class ProcessedRequests:
    """Requests of a batch with a processor.

    Attributes
    ----------
    entries : mapping
        SGLang's: a processor and the places in the batch that it serves.
    params : sequence
        Parameters of every request, or None.
    answers : mapping of int to list of int
        By place, the answer with its anchor.
    requests : mapping of int to Req
        By place.
    """

    entries: Mapping[int, Any]
    params: Sequence[Mapping[str, Any] | None]
    answers: Mapping[int, list[int]]
    requests: Mapping[int, Any]


def process(
    logits: Tensor, lens: Sequence[int], processed: ProcessedRequests, drafts: Sequence[Sequence[int]] | None
) -> None:
    """Run the processors of a batch over its rows [T, V], in place.

    Parameters
    ----------
    lens : sequence of int
        Rows of every request; T in all.
    drafts : sequence of sequence of int, or None
        Drafted tokens of every request; None if nothing was drafted.
    """
    starts = [0]
    for length in lens:
        starts.append(starts[-1] + length)
    for entry in processed.entries.values():
        spans = {place: range(starts[place], starts[place + 1]) for place in entry.rows}
        given = {
            place: [
                _at_row(processed.params[place], processed.answers[place], drafts[place][:depth] if drafts else ())
                for depth in range(lens[place])
            ]
            for place in entry.rows
        }
        try:
            _run(entry.processor, logits, spans, given)
        except Exception as error:  # noqa: BLE001 - a client's code may raise anything
            _run_apart(entry.processor, logits, spans, given, processed.requests, error)


def _run(
    processor: Any, logits: Tensor, spans: Mapping[int, range], given: Mapping[int, list[Mapping[str, Any] | None]]
) -> None:
    """Run a processor over the rows of several requests; write nothing if it fails."""
    index = torch.tensor([row for rows in spans.values() for row in rows], device=logits.device)
    result = processor(logits.index_select(0, index), [params for rows in given.values() for params in rows])
    if not isinstance(result, torch.Tensor) or result.shape != (len(index), logits.shape[1]):
        raise ValueError(f"it gives {getattr(result, 'shape', type(result).__name__)} for {len(index)} rows of logits")
    # False for what is not a number, too. A row that bans every token has an answer of its own: the end.
    if not (result.amax(-1) < float("inf")).all():
        raise ValueError("it gives logits that are infinite or not a number")
    logits.index_copy_(0, index, result.to(logits.dtype))


def _run_apart(
    processor: Any,
    logits: Tensor,
    spans: Mapping[int, range],
    given: Mapping[int, list[Mapping[str, Any] | None]],
    requests: Mapping[int, Any],
    error: Exception,
) -> None:
    """Run a processor that failed once more for each of its requests, and end those for which it fails."""
    for place, rows in spans.items():
        if len(spans) > 1:
            try:
                _run(processor, logits, {place: rows}, {place: given[place]})
                continue
            except Exception as its_own:  # noqa: BLE001 - as above
                error = its_own
        _end(requests[place], error)


def _end(request: Any, error: Exception) -> None:
    """Have SGLang end a request with its next token, which nobody should read."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    reason = f"custom_logit_processor failed: {type(error).__name__}: {error}"
    logger.warning("request %s is ended: %s", request.rid, reason)
    request.to_finish = FINISH_ABORT(reason, HTTPStatus.BAD_REQUEST, "BadRequestError")


def _at_row(params: Mapping[str, Any] | None, answer: list[int], drafts: Sequence[int]) -> Mapping[str, Any] | None:
    if params is None or _REQUEST not in params:
        return params
    return {**params, _REQUEST: RequestAtRow(params[_REQUEST], [*answer, *drafts])}
