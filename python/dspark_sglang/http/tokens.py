"""Token ids and batches that clients put together themselves, checked before SGLang works on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dspark_sglang.http.errors import ApiError


def check_ids(ids: Sequence[int] | None, vocab_size: int, name: str) -> None:
    """Raise ``ValueError``, which SGLang answers with 400, naming the first id that is none of the vocabulary."""
    # The scan for the culprit is slow, and a prompt that came as text has none.
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    wrong = next(one for one in ids if not 0 <= one < vocab_size)
    raise ValueError(f"{name} must be ids of the vocabulary, from 0 to {vocab_size - 1}, got {wrong}.")


def with_known_ids(validate: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Wrap ``TokenizerManager._validate_one_request``."""

    def validate_one_request(manager: Any, request: Any, input_ids: Any) -> None:
        # Upstream: 0.5.23 looks an unknown id up in the embedding, which ends the scheduler, and all of the server with
        # it, on one request. So does a prompt without a single token, where nothing else is prefilled beside it. Remove
        # when it refuses both.
        if input_ids is not None and len(input_ids) == 0 and getattr(request, "input_embeds", None) is None:
            raise ValueError("prompt must have at least one token.")
        check_ids(input_ids, manager.model_config.vocab_size, "input_ids")
        scored = getattr(request, "token_ids_logprob", None)
        if isinstance(scored, list) and all(isinstance(one, int) for one in scored):
            check_ids(scored, manager.model_config.vocab_size, "token_ids_logprob")
        sampling = getattr(request, "sampling_params", None)
        check_bias(sampling)
        check_stop_regex(sampling)
        validate(manager, request, input_ids)

    return validate_one_request


def check_bias(sampling: Any) -> None:
    """Raise ``ValueError`` if the keys of ``logit_bias`` in a request's sampling parameters are no numbers.

    Upstream: 0.5.23 lets out what ``int`` says of them, which names no field. Remove when it names it.
    """
    bias = sampling.get("logit_bias") if isinstance(sampling, dict) else None
    try:
        for key in bias if isinstance(bias, dict) else ():
            int(key)
    except ValueError as error:
        raise ValueError("logit_bias must have token ids as its keys.") from error


def check_stop_regex(sampling: Any) -> None:
    """Raise ``ValueError`` if a ``stop_regex`` in a request's sampling parameters is no regular expression.

    Upstream: 0.5.23 lets out what its parser raises, which is no ``ValueError`` (status 500), and does not compile
    the pattern before the scheduler uses it. Remove when it answers 400.
    """
    given = sampling.get("stop_regex") if isinstance(sampling, dict) else None
    if not given:
        return
    from sglang.srt.sampling.sampling_params import MAX_STOP_REGEX_LEN

    for pattern in [given] if isinstance(given, str) else given:
        if not isinstance(pattern, str) or len(pattern) > MAX_STOP_REGEX_LEN:
            raise ValueError(f"stop_regex must be regular expressions of at most {MAX_STOP_REGEX_LEN} characters.")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"stop_regex must be a regular expression: {error}.") from error


def with_even_batch(item: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Wrap ``__getitem__`` of a batch request."""

    def getitem(request: Any, index: int) -> Any:
        try:
            return item(request, index)
        except IndexError as error:
            # Upstream: 0.5.23 answers lists of different lengths with status 500. Remove when it refuses them.
            raise ValueError("the lists of a batch request must all have the length of its prompts") from error

    return getitem


def check_detokenize(request: Any, vocab_size: int) -> None:
    """Raise `ApiError` 400 if a request to turn ids into text has ids that are none; others pass."""
    tokens = getattr(request, "tokens", None)
    if not isinstance(tokens, list):
        return
    try:
        check_ids(list(_flat(tokens)), vocab_size, "tokens")
    except ValueError as error:
        raise ApiError(400, str(error), "invalid_value", "tokens") from error


def _flat(tokens: list[Any]) -> Iterator[int]:
    for one in tokens:
        if isinstance(one, list):
            yield from _flat(one)
        elif isinstance(one, int):
            yield one
