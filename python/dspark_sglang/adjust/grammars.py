"""Grammar masks at every row of a block: the matcher walks along the drafts and comes back.

A draft that the grammar forbids ends the walk: the target's masked law gives it no probability, so it is rejected,
and rows behind it are never looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dspark_sglang.verify import VerifyWindow

_WORD = 32


class GrammarWalk:
    """One step's walk of all constrained requests.

    Parameters
    ----------
    grammars : mapping of int to BaseGrammarObject
        By place in the batch, in the state after the anchor. `finish` leaves them in that state.
    width : int
        W = gamma + 1 rows of a full verification.
    vocab_size : int
    """

    def __init__(self, grammars: Mapping[int, Any], width: int, vocab_size: int) -> None:
        self.grammars, self._width, self._vocab_size = dict(grammars), width, vocab_size
        some = next(iter(self.grammars.values()))
        self._some = some
        self._masks = some.allocate_vocab_mask(vocab_size=vocab_size, batch_size=len(grammars) * width, device="cpu")
        # 32 tokens a word, lowest bit first: what xgrammar and llguidance fill. Others are not read, only applied.
        self._packed = self._masks.dtype == torch.int32
        # The same memory: single words are read twenty times faster through numpy.
        self._words: np.ndarray = self._masks.numpy()
        self._place = {request: n for n, request in enumerate(self.grammars)}
        self._accepted = dict.fromkeys(self.grammars, 0)
        self._open = {r: not g.finished and not g.is_terminated() for r, g in self.grammars.items()}
        for request, grammar in self.grammars.items():
            if self._open[request]:
                grammar.fill_vocab_mask(self._masks, self._place[request] * width)

    def advance(self, request: int, token: int) -> None:
        """Walk over one more draft of a request."""
        if not self._open[request]:
            return
        grammar, depth = self.grammars[request], self._accepted[request] + 1
        row = self._place[request] * self._width + depth
        if not self._accepts(grammar, row - 1, token):
            self._open[request] = False
            return
        self._accepted[request] = depth
        if grammar.is_terminated():
            # The answer ends here; SGLang drops what follows.
            self._open[request] = False
        else:
            grammar.fill_vocab_mask(self._masks, row)

    def _accepts(self, grammar: Any, row: int, token: int) -> bool:
        if self._packed and not (self._words[row, token // _WORD] >> (token % _WORD)) & 1:
            return False
        try:
            grammar.accept_token(token)
        except ValueError:
            return False
        return True

    def open_requests(self) -> list[int]:
        """List the requests whose next token is known to be bound; none if the backend's masks cannot be read."""
        return [request for request, is_open in self._open.items() if is_open] if self._packed else []

    def banned(self, requests: Sequence[int], candidates: Tensor | None, num_logits: int) -> Tensor:
        """Tell which tokens may not come next, for some of `open_requests`.

        Parameters
        ----------
        candidates : int64 [n, S] or None
            Of each request; None for the vocabulary.
        num_logits : int
            S, or tokens that the draft has logits for, at most V.

        Returns
        -------
        bool [n, num_logits]
        """
        rows = [self._place[request] * self._width + self._accepted[request] for request in requests]
        words = self._words[rows]
        if candidates is not None:
            at = candidates.numpy()
            found = (np.take_along_axis(words, at // _WORD, 1) >> (at % _WORD)) & 1
        else:
            found = np.unpackbits(words.view(np.uint8), axis=1, count=num_logits, bitorder="little")
        return torch.from_numpy(found == 0)

    def apply(self, logits: Tensor, window: VerifyWindow, drafts: Sequence[Sequence[int]] | None) -> None:
        """Mask the verified rows [T, V] in place.

        Parameters
        ----------
        drafts : sequence of sequence of int, or None
            Drafted tokens of every request; None if nothing was drafted.
        """
        mask = self._some.allocate_vocab_mask(vocab_size=self._vocab_size, batch_size=logits.shape[0], device="cpu")
        mask_rows, first = mask.numpy(), 0
        lens = window.verify_lens_list
        for request, length in enumerate(lens):
            if request in self.grammars:
                for token in drafts[request][self._accepted[request] : length - 1] if drafts is not None else ():
                    self.advance(request, token)
                rows = min(length, self._accepted[request] + 1)
                start = self._place[request] * self._width
                mask_rows[first : first + rows] = self._words[start : start + rows]
            first += length
        self._some.apply_vocab_mask(logits=logits, vocab_mask=self._some.move_vocab_mask(mask, logits.device))

    def finish(self) -> None:
        """Take the walk back, so that SGLang advances the matchers over what was really emitted."""
        for request, accepted in self._accepted.items():
            if accepted:
                self.grammars[request].rollback(accepted)
                self._accepted[request] = 0
            self._open[request] = False
