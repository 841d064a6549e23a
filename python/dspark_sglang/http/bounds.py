"""Values of a request that would end SGLang's scheduler, and the whole server with it: refused or bounded by name.

A request reaches the scheduler as its client wrote it, but for what SGLang's own checks look at; what raises there, in
the middle of a batch, nothing catches. So everything is looked at once more before it is sent.
"""

from __future__ import annotations

import copy
import math
import re
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

MOST_ANSWERS = 4096
# What is further from zero changes no law any more and leaves the range of fp32 on its way through the sampler, where
# infinity over infinity is no number.
HOTTEST, LARGEST_BIAS, LEAST_REPETITION = 1e30, 1e30, 1e-6
_PATH = re.compile(r" - at `\$(?:\[(\d+)\])(?:\[(\d+)\])?.*\Z")
# Only the server itself writes these, or they are large and have been looked at by now.
_NOT_THE_CLIENTS = ("time_stats", "mm_inputs", "token_type_ids")


def with_bounded_values(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``TokenizerManager._create_tokenized_object``, whose ``ValueError`` SGLang answers with 400."""

    def create_tokenized_object(manager: Any, *rest: Any, **named: Any) -> Any:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

        made = create(manager, *rest, **named)
        if isinstance(made, TokenizedGenerateReqInput):
            bound_values(made, manager.model_config.vocab_size, manager.context_len)
        return made

    return create_tokenized_object


def bound_values(request: Any, vocab_size: int, context_length: int) -> None:
    """Bound in place what has the same law below the bound; raise ``ValueError`` naming what cannot be served.

    Parameters
    ----------
    request : TokenizedGenerateReqInput
        As it would be sent to the scheduler.
    vocab_size, context_length : int
        Of the target.
    """
    # Upstream: 0.5.23 looks at none of these before its scheduler does, in mid-batch. Remove what it refuses itself.
    check_types(request)
    _bound_sampling(request.sampling_params, vocab_size, context_length)
    _within("top_logprobs_num", request.top_logprobs_num, 0, vocab_size)
    _within("logprob_start_len", request.logprob_start_len, -1)
    for name in ("token_indices_to_pool", "multi_item_delimiter_indices"):
        for place in getattr(request, name) or ():
            _within(name, place, 0, len(request.input_ids or ()) - 1)
    _check_session(request.session_params)
    _check_processor(request.custom_logit_processor)


def check_types(request: Any) -> None:
    """Raise ``ValueError`` if the scheduler could not read a request, or reads something else than its type says.

    Upstream: 0.5.23 checks the types of what ``/generate`` documents, not of every field that it takes; and where
    requests travel as MessagePack, the scheduler ends on what it cannot decode. Remove when it checks all of it.
    """
    from sglang.srt.managers import io_struct

    sent = copy.copy(request)
    for name in _NOT_THE_CLIENTS:
        setattr(sent, name, None)
    sent.input_ids = array("q")
    if isinstance(sent.positional_embed_overrides, io_struct.PositionalEmbeds):
        sent.positional_embed_overrides = None
    if io_struct._USE_PICKLE_IPC:
        # A pickle carries parameters of any depth.
        sent.sampling_params = copy.copy(sent.sampling_params)
        sent.sampling_params.custom_params = None
    try:
        io_struct.msgpack_decode(io_struct.msgpack_encode(sent))
    except msgspec.ValidationError as error:
        reason = _PATH.sub("", str(error))
        raise ValueError(f"{_field_at(sent, str(error))} must be of another type: {reason}.") from error
    except (OverflowError, UnicodeEncodeError) as error:
        name = _first_unsendable(sent)
        raise ValueError(f"{name} must be text or numbers that can be sent: {error}.") from error


def with_checked_form(normalize: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``GenerateReqInput.normalize_batch_and_arguments``, which multiplies a request by its ``n``.

    Upstream: 0.5.23 takes any ``n``, and answers what has another form than it expects with status 500. Remove when it
    refuses both.
    """

    def normalize_batch_and_arguments(request: Any) -> None:
        given = request.sampling_params
        if isinstance(given, list) and not given:
            raise ValueError("sampling_params must have an entry for each prompt.")
        for sampling in given if isinstance(given, list) else [given or {}]:
            _check_answers(sampling)
        if request.session_params:
            _check_session_fields(request.session_params)
        _keep_known_labels(request)
        normalize(request)
        if request.is_single and not isinstance(request.rid, str):
            raise ValueError("rid must be one text for one prompt.")

    return normalize_batch_and_arguments


def _keep_known_labels(request: Any) -> None:
    # Upstream: 0.5.23 hands labels of /generate to its metrics as they come. An unknown one raises there, in the loop
    # that receives all answers, which ends the server. Its other routes leave unknown ones out. Remove when all do.
    if request.custom_labels:
        from sglang.srt import runtime_context

        known = runtime_context.get_observability().tokenizer_metrics_allowed_custom_labels or ()
        request.custom_labels = {name: value for name, value in request.custom_labels.items() if name in known} or None


def _check_answers(sampling: dict[str, Any]) -> None:
    # Null is the default, as it is for every other parameter.
    if sampling.get("n", 1) is None:
        del sampling["n"]
    n = sampling.get("n", 1)
    if not isinstance(n, int):
        raise ValueError("n must be an integer.")
    _within("n", n, 1, MOST_ANSWERS)


def _check_session_fields(given: Any) -> None:
    from sglang.srt.managers.io_struct import SessionParams

    known = SessionParams.__struct_fields__
    if not isinstance(given, dict) or not set(given) <= set(known):
        raise ValueError(f"session_params must be an object with no other fields than {', '.join(known)}.")


def _bound_sampling(sampling: Any, vocab_size: int, context_length: int) -> None:
    from sglang.srt.sampling.sampling_params import TOP_K_ALL

    # A batch holds these in int32 and fp32. What lies beyond means the same as the bound.
    sampling.top_k = min(sampling.top_k, TOP_K_ALL)
    sampling.temperature = min(sampling.temperature, HOTTEST)
    _within("repetition_penalty", sampling.repetition_penalty, LEAST_REPETITION)
    _within("min_new_tokens", sampling.min_new_tokens, 0, context_length)
    # What no token has is never drawn, and so stops nothing; only where ends are masked would it be looked up.
    sampling.stop_token_ids = {i for i in sampling.stop_token_ids or () if 0 <= i < vocab_size} or None
    for value in (sampling.logit_bias or {}).values():
        if not (math.isfinite(value) and abs(value) <= LARGEST_BIAS):
            raise ValueError(f"logit_bias must have values from {-LARGEST_BIAS:g} to {LARGEST_BIAS:g}, got {value}.")


def _within(name: str, value: float, least: float, most: float | None = None) -> None:
    if value < least or (most is not None and value > most):
        bounds = f"at least {least:g}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {bounds}, got {value}.")


def _check_session(session: Any) -> None:
    # Upstream: 0.5.23 deletes from the dictionary of a session's requests while it walks through it. Remove when it
    # replaces all of a session's requests.
    if session is not None and session.replace and session.rid is None:
        raise ValueError("session_params must name the request to replace, as its rid.")


def _check_processor(text: str | None) -> None:
    """Load a custom processor, which the scheduler would do in the middle of a batch."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    if not text:
        return
    try:
        CustomLogitProcessor.from_str(text)
    except Exception as error:  # noqa: BLE001 - it is code, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"custom_logit_processor must be what CustomLogitProcessor.to_str gives ({reason})."
        ) from error


def _field_at(request: Any, message: str) -> str:
    """Name the field, or the sampling parameter, at the place that msgspec tells of an array."""
    path = _PATH.search(message)
    if path is None:
        return "request"
    # The first element is the kind of the message.
    name = msgspec.structs.fields(type(request))[int(path[1]) - 1].name
    if name != "sampling_params" or path[2] is None:
        return str(name)
    return str(msgspec.structs.fields(type(request.sampling_params))[int(path[2])].name).removesuffix("_strs")


def _first_unsendable(request: Any) -> str:
    """Name the field, or the sampling parameter, that no encoding has."""
    for struct in (request.sampling_params, request):
        for field in msgspec.structs.fields(type(struct)):
            try:
                msgspec.msgpack.encode(getattr(struct, field.name), enc_hook=lambda _: None)
            except (OverflowError, UnicodeEncodeError):
                return str(field.name).removesuffix("_strs")
    return "request"
