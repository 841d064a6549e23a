"""What of a batch's settings changes the logits of one decode step: the target's at every row, the draft's on the way.

Order as in SGLang's sampler: penalties, grammar and least length, logit_bias, custom processors.

Shape legend: R requests, W = gamma + 1 columns, T = sum of verify_lens, S shortlist, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dspark_sglang.adjust.processors import ProcessedRequests, process
from sgl_dspark.sampling.penalties import Penalties, penalise_rows, penalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from torch import Tensor

    from dspark_sglang.adjust.answers import Answers
    from dspark_sglang.adjust.grammars import GrammarWalk
    from dspark_sglang.adjust.seeds import SeededRequests
    from dspark_sglang.verify import VerifyWindow
    from sgl_dspark.sampling.block import DraftBlock


@dataclass(frozen=True)
class PenalisedRequests:
    """Requests with penalties.

    Attributes
    ----------
    places : list of int
        In the batch, ascending.
    rows : int64 [n]
        In ``answers``.
    lengths : list of int
        Tokens of each answer, the anchor included.
    penalties : Penalties
        Of the n requests.
    """

    places: list[int]
    rows: Tensor
    lengths: list[int]
    penalties: Penalties
    answers: Answers


@dataclass(frozen=True)
class Biases:
    """Logits that are changed whatever was said before, by place in the batch.

    Attributes
    ----------
    added : dict of int to (int64 [b], fp32 [b])
        Tokens and what is added to them.
    barred : dict of int to (int64 [b], int)
        Tokens that end an answer, and how many tokens must come before they may.
    """

    added: dict[int, tuple[Tensor, Tensor]]
    barred: dict[int, tuple[Tensor, int]]


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
        found = DraftAdjustment(self, row_of)
        return found if found.concerns_any else None


def bar_ends(logits: Tensor, ends: Tensor) -> None:
    """Bar the tokens that end an answer (int64 [b]) from logits [N, V] in place, but where nothing else is left.

    A grammar that is complete allows nothing but an end: it wins over the least length.
    """
    barred = logits.index_fill(1, ends, float("-inf"))
    hopeless = barred.amax(1, keepdim=True) == float("-inf")
    logits.copy_(torch.where(hopeless, logits, barred))


class DraftAdjustment:
    """The draft's side: the same changes over the candidates of each slot, where they are known without waiting.

    A draft that the target's law forbids is rejected at the cost of its time; so this changes what is accepted, never
    what comes out.
    """

    def __init__(self, step: StepAdjustments, row_of: dict[int, int] | None) -> None:
        def rows(places: Sequence[int]) -> list[tuple[int, int, int]]:
            """List (place, row, index) of what is drafted."""
            found = enumerate(places)
            return [(p, p if row_of is None else row_of[p], n) for n, p in found if row_of is None or p in row_of]

        self._step = step
        self._penalised = rows(step.penalised.places) if step.penalised is not None else []
        self._added = rows(list(step.biases.added))
        self._barred = rows(list(step.biases.barred))
        self._constrained = rows(list(step.grammar.grammars)) if step.grammar is not None else []
        self.concerns_any = bool(self._penalised or self._added or self._barred or self._constrained)

    def adjust(self, slot: int, logits: Tensor, candidates: Tensor | None, drafts: Sequence[Tensor]) -> Tensor:
        """Give the logits to draw slot ``slot`` from; see `sgl_dspark.sampling.protocols.SlotAdjustment`."""
        changed = logits.clone()
        if self._penalised:
            self._penalise(changed, candidates, drafts)
        biases = self._step.biases
        for place, row, _ in self._barred:
            tokens, missing = biases.barred[place]
            if slot < missing:
                at = tokens if candidates is None else torch.isin(candidates[row], tokens)
                changed[row, at] = float("-inf")
        if logits.device.type == "cpu":
            self._constrain(changed, candidates, drafts)
        for place, row, _ in self._added:
            tokens, values = biases.added[place]
            if candidates is None:
                changed[row].index_add_(0, tokens, values)
            else:
                same = candidates[row].unsqueeze(1) == tokens
                changed[row] += (same * values).sum(1)
        # Where nothing is left the draft keeps its own law: a row must have something to draw.
        hopeless = changed.amax(-1, keepdim=True) == float("-inf")
        return torch.where(hopeless, logits, changed)

    def _penalise(self, logits: Tensor, candidates: Tensor | None, drafts: Sequence[Tensor]) -> None:
        one = self._step.penalised
        assert one is not None
        rows = torch.tensor([row for _, row, _ in self._penalised], device=logits.device)
        index = torch.tensor([n for _, _, n in self._penalised], device=logits.device)
        table = one.rows[index]
        if candidates is None:
            counts = one.answers.counts(table)
            listed = torch.arange(logits.shape[1], device=logits.device).expand(len(rows), -1)
        else:
            listed = candidates[rows]
            counts = one.answers.counts_at(table, listed)
        for earlier in drafts:
            counts = counts + (listed == earlier[rows].unsqueeze(1))
        logits[rows] = penalised(logits[rows], counts, one.penalties.select(index))

    def _constrain(self, logits: Tensor, candidates: Tensor | None, drafts: Sequence[Tensor]) -> None:
        walk = self._step.grammar
        if walk is None or not self._constrained:
            return
        row_of = {place: row for place, row, _ in self._constrained}
        if drafts:
            tokens = drafts[-1].tolist()
            for place, row in row_of.items():
                walk.advance(place, tokens[row])
        bound = [place for place in walk.open_requests() if place in row_of]
        if bound:
            rows = torch.tensor([row_of[place] for place in bound])
            banned = walk.banned(bound, None if candidates is None else candidates[rows])
            logits[rows] = logits[rows].masked_fill_(banned[:, : logits.shape[1]], float("-inf"))
