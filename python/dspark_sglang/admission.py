"""Refuse, by name, request features that DSpark does not serve exactly yet.

Ignoring one of them would change the law of the output in silence, so the request
is answered with HTTP 400 instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspark_sglang import selection

# Name that the client used, and whether a tokenized request asks for it.
_SAMPLING_RULES: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("beam_width", lambda p: p.beam_width is not None and p.beam_width > 1),
    ("watermark", lambda p: getattr(p.watermark, "enabled", p.watermark is not None) is True),
)
_REQUEST_RULES: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("lora_path (model adapter)", lambda r: r.lora_id is not None),
    ("return_hidden_states", lambda r: bool(r.return_hidden_states)),
    ("input_embeds", lambda r: r.input_embeds is not None),
    ("return_routed_experts", lambda r: bool(getattr(r, "return_routed_experts", False))),
    ("return_indexer_topk", lambda r: bool(getattr(r, "return_indexer_topk", False))),
    ("return_sampling_mask", lambda r: bool(getattr(r, "return_sampling_mask", False))),
)


def unsupported_parameters(tokenized: Any) -> list[str]:
    """Return the names of the parameters of a request that DSpark does not serve exactly.

    Parameters
    ----------
    tokenized : TokenizedGenerateReqInput
        A request as SGLang's tokenizer manager hands it to the scheduler.
    """
    names = [name for name, asks in _SAMPLING_RULES if asks(tokenized.sampling_params)]
    names += [name for name, asks in _REQUEST_RULES if asks(tokenized)]
    return names


def refuse_unsupported(tokenized: Any) -> None:
    """Raise ``ValueError``, which SGLang answers with HTTP 400, naming every such parameter.

    Does nothing for requests of a server that does not run our DSPARK worker, or
    that are no generation requests.
    """
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

    if not isinstance(tokenized, TokenizedGenerateReqInput) or not selection.serves_ours():
        return
    names = unsupported_parameters(tokenized)
    if names:
        what = ", ".join(names)
        raise ValueError(
            f"{what}: not supported with DSpark speculative decoding yet, and ignoring it would change the output; "
            "leave it out, or send the request to a server started without speculation"
        )
