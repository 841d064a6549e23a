"""Where an answer ends whose last step accepted several tokens: at the first of its ends, as if they came singly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def end_at_the_first(original: Callable[..., None], request: Any, new_accepted_len: int = 1) -> None:
    """Wrap ``Req.update_finish_state``.

    Parameters
    ----------
    original : callable
        The wrapped function.
    request : Req
        ``output_ids`` ends with the tokens of this step.
    new_accepted_len : int
        How many of them this step accepted.
    """
    # Upstream: 0.5.23 looks for stop strings in the whole accepted run before it looks for end tokens, and for one
    # string after the other: of "END text STOP" it keeps the text, and of two strings it takes the first of the list
    # instead of the first in the text. Remove when it ends at the first.
    running = not request.finished()
    original(request, new_accepted_len)
    sampling = request.sampling_params
    if running and new_accepted_len > 1 and (sampling.stop_strs or sampling.stop_regex_strs):
        _look_before(request, new_accepted_len)


def _look_before(request: Any, new_accepted_len: int) -> None:
    """End at the first token of the run at which the answer would have ended alone, if its present end hides that."""
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH, FINISH_MATCHED_STR, FINISHED_MATCHED_REGEX

    tokens, reason, length = request.output_ids, request.finished_reason, request.finished_len
    # An end token is found at its first place, and only where no string matches.
    if not isinstance(reason, (FINISH_MATCHED_STR, FINISHED_MATCHED_REGEX, FINISH_LENGTH)):
        return
    end = len(tokens) if length is None else length
    # A string beyond the last token that is allowed hides an end at that token, too.
    last = end if isinstance(reason, FINISH_LENGTH) else end - 1
    try:
        for count in range(len(tokens) - new_accepted_len + 1, last + 1):
            request.output_ids = tokens[:count]
            request.finished_reason = request.finished_len = None
            if request._check_str_based_finish(1) or request._check_token_based_finish(tokens[count - 1 : count]):
                reason, length = request.finished_reason, count
                break
    finally:
        request.output_ids, request.finished_reason, request.finished_len = tokens, reason, length
