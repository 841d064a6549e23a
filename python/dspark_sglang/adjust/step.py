"""What of a batch's settings changes the logits of one decode step: the target's at every row, the draft's on the way.

Order as in SGLang's sampler: penalties, grammar and least length, logit_bias, custom processors.

Shape legend: R requests, W = gamma + 1 columns, T = sum of verify_lens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dspark_sglang.adjust.draft import DraftAdjustment
from dspark_sglang.adjust.processors import ProcessedRequests, process
from sgl_dspark.sampling.penalties import penalise_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from torch import Tensor

    from dspark_sglang.adjust.grammars import GrammarWalk
    from dspark_sglang.adjust.seeds import SeededRequests
    from dspark_sglang.adjust.settings import Biases, PenalisedRequests
    from dspark_sglang.verify import VerifyWindow
    from sgl_dspark.sampling.block import DraftBlock


@dataclass
class StepAdjustments:
    """All of it, for one step.

    Attributes
    ----------
    adjusted : bool [R], numpy
        Requests whose law or acceptance is not that of plain sampling.
    processors : ProcessedRequests or None
        Its ``answers`` are extended by `commit`.
    """

    adjusted: np.ndarray
    penalised: PenalisedRequests | None
    biases: Biases
    grammar: GrammarWalk | None
    processors: ProcessedRequests | None
    seeded: SeededRequests | None

    def apply(self, logits: Tensor, window: VerifyWindow, block: DraftBlock | None) -> None:
        """Change the target's logits [T, V] in place; every row with the drafts before it."""
        if self.penalised is not None:
            self._penalise(logits, window, block)
        drafts = self._host_drafts(block)
        if self.grammar is not None:
            self.grammar.apply(logits, window, drafts)
            self.grammar.finish()
        for place, (tokens, missing) in self.biases.barred.items():
            rows = range(*window.row_span(place))[:missing]
            bar_ends(logits[rows.start : rows.stop], tokens)
        for place, (tokens, values) in self.biases.added.items():
            start, stop = window.row_span(place)
            logits[start:stop].index_add_(1, tokens, values.expand(stop - start, -1))
        if self.processors is not None:
            process(logits, window.verify_lens_list, self.processors, drafts)

    def _host_drafts(self, block: DraftBlock | None) -> list[list[int]] | None:
        if block is None or (self.grammar is None and self.processors is None):
            return None
        # Sync: grammars and custom processors run on the host.
        found: list[list[int]] = block.tokens.tolist()
        return found

    def _penalise(self, logits: Tensor, window: VerifyWindow, block: DraftBlock | None) -> None:
        assert self.penalised is not None
        one = self.penalised
        rows, owners, depths = (part.to(logits.device) for part in window.rows_of(one.places))
        answers = one.answers.tokens(one.rows, max(one.lengths))
        at = torch.tensor(one.places, device=logits.device)
        drafts = answers[:, :0] if block is None else block.tokens[at]
        penalise_rows(logits, rows, owners, depths, answers, one.answers.counts(one.rows), drafts, one.penalties)

    def commit(self, out_tokens: Tensor, accept_lens: Tensor) -> None:
        """Take note of what was emitted.

        Parameters
        ----------
        out_tokens : int64 [R, W]
        accept_lens : int64 [R]
        """
        if self.penalised is not None:
            one = self.penalised
            at = torch.tensor(one.places, device=out_tokens.device)
            ends = torch.tensor(one.lengths, device=out_tokens.device)
            longest = max(one.lengths) + out_tokens.shape[1]
            one.answers.append(one.rows, ends, out_tokens[at], accept_lens[at], longest)
        if self.processors is not None:
            # Sync: as above.
            tokens, lens = out_tokens.tolist(), accept_lens.tolist()
            for place, answer in self.processors.answers.items():
                answer += tokens[place][: lens[place]]

    def for_draft(self, places: Sequence[int] | None) -> DraftAdjustment | None:
        """Give what the drafts of all requests, or of those at ``places``, follow; None if nothing concerns them."""
        row_of = None if places is None else {place: row for row, place in enumerate(places)}
        found = DraftAdjustment(self.penalised, self.biases, self.grammar, len(self.adjusted), row_of)
        return found if found.concerns_any else None


def bar_ends(logits: Tensor, ends: Tensor) -> None:
    """Bar the tokens that end an answer (int64 [b]) from logits [N, V] in place, but where nothing else is left.

    A grammar that is complete allows nothing but an end: it wins over the least length.
    """
    barred = logits.index_fill(1, ends, float("-inf"))
    hopeless = barred.amax(1, keepdim=True) == float("-inf")
    logits.copy_(torch.where(hopeless, logits, barred))
