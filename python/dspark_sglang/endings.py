"""Drafts that cannot be used any more: past the end of an answer, which the host learns of one step late.

Under overlap a request that has ended takes part in one step more, whose tokens are dropped. Nothing needs to be
drafted or verified for it, and before the last tokens of an answer no more drafts than are still wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sglang import compat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_NONE = -1


class Endings:
    """Knows by request slot how long answers may get, and which have met an end token.

    Parameters
    ----------
    num_slots : int
        Request slots of the engine.
    end_tokens : int64 array
        Tokens that end an answer.
    """

    def __init__(self, num_slots: int, end_tokens: np.ndarray) -> None:
        self.end_tokens = end_tokens
        # Which occupant of a slot the entries are about; a later one has another generation.
        self._known = np.full(num_slots, _NONE, np.int64)
        self._ended = np.full(num_slots, _NONE, np.int64)
        self._final_length = np.zeros(num_slots, np.int64)

    def useful(
        self, requests: Sequence[Any], slots: np.ndarray, generations: np.ndarray, lengths: np.ndarray, room: np.ndarray
    ) -> np.ndarray:
        """Bound the drafts of each request by what its answer can still use.

        Parameters
        ----------
        requests : sequence
            SGLang's requests, in batch order.
        slots, generations : int64 [R]
        lengths : int64 [R]
            Committed tokens; the anchor comes on top.
        room : int64 [R]
            Drafts that fit the context.

        Returns
        -------
        int64 [R]
            At most ``room``; 0 for a request that has ended or takes its last token in this step.
        """
        for i in np.flatnonzero(self._known[slots] != generations).tolist():
            self._known[slots[i]] = generations[i]
            self._final_length[slots[i]] = compat.final_length(requests[i])
        # A round of d drafts emits up to d + 1 tokens, and the anchor is already counted.
        wanted = self._final_length[slots] - lengths - 2
        found = np.minimum(room, np.maximum(wanted, 0))
        found[self._ended[slots] == generations] = 0
        return found

    def note(
        self,
        requests: Sequence[Any],
        slots: np.ndarray,
        generations: np.ndarray,
        out_tokens: Tensor,
        accept_lens: Tensor,
    ) -> None:
        """Look for end tokens in what a step emitted; only where its results are in the host's memory.

        Parameters
        ----------
        out_tokens : int64 [R, gamma + 1]
        accept_lens : int64 [R]
            How many of them were emitted.
        """
        if out_tokens.device.type != "cpu" or not self.end_tokens.size:
            return
        tokens = out_tokens.numpy()
        ends = tokens == self.end_tokens[0]
        for token in self.end_tokens[1:]:
            ends |= tokens == token
        if not ends.any():
            return
        ends &= np.arange(tokens.shape[1]) < accept_lens.numpy()[:, None]
        for i in np.flatnonzero(ends.any(axis=1)).tolist():
            if not compat.ignores_end_tokens(requests[i]):
                self._ended[slots[i]] = generations[i]

    def cut(self, drafts: np.ndarray, verified: np.ndarray, accepted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bound rounds by the first drafted end of the answer.

        Nothing behind it was meant to be right; whether it was accepted must not matter, or the rounds that are cut
        would be the lucky ones.

        Parameters
        ----------
        drafts : int64 [n, gamma]
        verified, accepted : int64 [n]
            Drafts verified, and how many of these were correct.

        Returns
        -------
        verified, accepted : int64 [n]
        """
        ends = (drafts[:, :, None] == self.end_tokens).any(axis=2)
        first_end = np.where(ends.any(axis=1), ends.argmax(axis=1), drafts.shape[1]) + 1
        return np.minimum(verified, first_end), np.minimum(accepted, first_end)
