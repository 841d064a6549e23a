"""Custom logit processors at every row of a block: each sees the answer as it stands at its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dspark_sglang.verify import VerifyWindow

# Where SGLang puts the request among the parameters that it hands to a processor.
_REQUEST = "__req__"


class RequestAtRow:
    """A request of SGLang's whose answer has the drafts before a row appended."""

    def __init__(self, request: Any, output_ids: list[int]) -> None:
        self._request = request
        self.output_ids = output_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def process(
    logits: Tensor,
    window: VerifyWindow,
    entries: Mapping[int, Any],
    params: Sequence[Mapping[str, Any] | None],
    answers: Mapping[int, list[int]],
    drafts: Sequence[Sequence[int]] | None,
) -> None:
    """Run the processors of a batch over its verified rows [T, V], in place.

    Parameters
    ----------
    entries : mapping
        SGLang's: a processor and the places in the batch that it serves.
    params : sequence
        Parameters of every request, or None.
    answers : mapping of int to list of int
        By place, the answer with its anchor.
    drafts : sequence of sequence of int, or None
        Drafted tokens of every request; None if nothing was drafted.
    """
    lens = window.verify_lens_list
    starts = [0]
    for length in lens:
        starts.append(starts[-1] + length)
    for entry in entries.values():
        rows, given = [], []
        for place in entry.rows:
            for depth in range(lens[place]):
                rows.append(starts[place] + depth)
                given.append(_at_row(params[place], answers[place], drafts[place][:depth] if drafts else ()))
        index = torch.tensor(rows, device=logits.device)
        result = entry.processor(logits.index_select(0, index), given)
        logits.index_copy_(0, index, result.to(logits.dtype))


def _at_row(params: Mapping[str, Any] | None, answer: list[int], drafts: Sequence[int]) -> Mapping[str, Any] | None:
    if params is None or _REQUEST not in params:
        return params
    return {**params, _REQUEST: RequestAtRow(params[_REQUEST], [*answer, *drafts])}
