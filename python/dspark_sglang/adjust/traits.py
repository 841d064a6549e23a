"""Which running requests change their logits, and how; read once per request and kept by slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

PENALISED, SHORTEST, BIASED, CONSTRAINED, PROCESSED, SEEDED = (1 << bit for bit in range(6))
"""Penalties; a least length; logit_bias; a grammar; a custom logit processor; a seed."""

_NONE = -1


class RequestTraits:
    """Flags and small values of every request slot.

    Attributes
    ----------
    flags : uint8 [num_slots]
        Sum of the constants above.
    prompt_lens, seeds, min_new_tokens : int64 [num_slots]
    coefficients : float32 [num_slots, 3]
        Frequency, presence and repetition penalty.

    Parameters
    ----------
    num_slots : int
        Request slots of the engine.
    """

    def __init__(self, num_slots: int) -> None:
        self._known = np.full(num_slots, _NONE, np.int64)
        self.flags = np.zeros(num_slots, np.uint8)
        self.prompt_lens = np.zeros(num_slots, np.int64)
        self.seeds = np.zeros(num_slots, np.int64)
        self.min_new_tokens = np.zeros(num_slots, np.int64)
        self.coefficients = np.zeros((num_slots, 3), np.float32)

    def look(self, requests: Sequence[Any], slots: np.ndarray, generations: np.ndarray) -> np.ndarray:
        """Return the flags of a batch, uint8 [R]; a request that is new in its slot is read.

        Parameters
        ----------
        requests : sequence
            SGLang's requests, in batch order.
        slots, generations : int64 [R]
            Rows of the request pool, and their occupants' numbers.
        """
        for i in np.flatnonzero(self._known[slots] != generations).tolist():
            self._known[slots[i]] = generations[i]
            self._read(requests[i], int(slots[i]))
        return self.flags[slots]

    def _read(self, request: Any, slot: int) -> None:
        given = request.sampling_params
        penalties = (given.frequency_penalty, given.presence_penalty, given.repetition_penalty)
        self.prompt_lens[slot] = len(request.origin_input_ids)
        self.coefficients[slot] = penalties
        self.min_new_tokens[slot] = given.min_new_tokens
        # SGLang writes a greedy request as one with top-k 1; it needs no seed.
        seeded = given.sampling_seed is not None and given.top_k != 1
        self.seeds[slot] = given.sampling_seed if seeded else 0
        self.flags[slot] = (
            PENALISED * (penalties != (0.0, 0.0, 1.0))
            + SHORTEST * (given.min_new_tokens > 0)
            + BIASED * bool(given.logit_bias)
            + CONSTRAINED * (request.grammar is not None)
            + PROCESSED * bool(request.custom_logit_processor)
            + SEEDED * seeded
        )


def stop_tokens(request: Any) -> list[int]:
    """Return the tokens that ``min_new_tokens`` bars: the request's own, the model's and the tokenizer's."""
    found = set(request.sampling_params.stop_token_ids or ()) | set(request.eos_token_ids or ())
    if request.tokenizer is not None:
        found |= set(getattr(request.tokenizer, "additional_stop_token_ids", None) or ())
        found.add(request.tokenizer.eos_token_id)
    return sorted(token for token in found if token is not None)


def end_token(request: Any) -> int:
    """Return a token that ends an answer, and that a complete grammar allows; 0 if there is none."""
    ends = sorted(request.eos_token_ids or ())
    if not ends and request.tokenizer is not None and request.tokenizer.eos_token_id is not None:
        ends = [request.tokenizer.eos_token_id]
    return ends[0] if ends else 0
