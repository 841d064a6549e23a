"""What of a batch's settings changes the draft's logits, slot by slot.

A draft that the target's law forbids is rejected at the cost of its time; so this changes what is accepted, never what
comes out.

Shape legend: R drafted requests, n of them that a setting concerns, S shortlist, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sgl_dspark.sampling.penalties import penalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dspark_sglang.adjust.grammars import GrammarWalk
    from dspark_sglang.adjust.settings import Biases, PenalisedRequests

_NEVER = float("-inf")


class DraftAdjustment:
    """The same changes as on the target's side over the candidates of each slot, where they are known without waiting.

    For one block: slots are adjusted in order.

    Parameters
    ----------
    penalised : PenalisedRequests or None
    biases : Biases
    grammar : GrammarWalk or None
    num_requests : int
        Of the batch.
    row_of : dict of int to int, or None
        By place in the batch, its row among the drafts; None if all are drafted.

    Attributes
    ----------
    concerns_any : bool
        Whether there is anything to do for what is drafted.
    """

    def __init__(
        self,
        penalised: PenalisedRequests | None,
        biases: Biases,
        grammar: GrammarWalk | None,
        num_requests: int,
        row_of: dict[int, int] | None,
    ) -> None:
        def rows(places: Sequence[int]) -> list[tuple[int, int]]:
            """List (place, row) of what is drafted."""
            return [(p, p if row_of is None else row_of[p]) for p in places if row_of is None or p in row_of]

        self._num_rows = num_requests if row_of is None else len(row_of)
        self._biases, self._walk = biases, grammar
        self._penalties = None
        if penalised is not None and (concerned := rows(penalised.places)):
            self._penalties = _Penalties(penalised, dict(concerned), self._num_rows)
        self._added, self._barred = rows(list(biases.added)), rows(list(biases.barred))
        self._constrained = dict(rows(list(grammar.grammars))) if grammar is not None else {}
        self.concerns_any = bool(self._penalties or self._added or self._barred or self._constrained)

    def adjust(self, slot: int, logits: Tensor, candidates: Tensor | None, drafts: Sequence[Tensor]) -> Tensor:
        """Give the logits to draw slot ``slot`` from; see `sgl_dspark.sampling.protocols.SlotAdjustment`."""
        changed = logits if self._penalties is None else self._penalties.apply(logits, candidates, drafts)
        may_be_hopeless = False
        for place, row in self._barred:
            tokens, missing = self._biases.barred[place]
            if slot < missing:
                at = tokens if candidates is None else torch.isin(candidates[row], tokens)
                changed = logits.clone() if changed is logits else changed
                changed[row, at] = _NEVER
                may_be_hopeless = True
        if self._constrained and logits.device.type == "cpu":
            changed = self._constrain(changed, candidates, drafts)
            may_be_hopeless = True
        for place, row in self._added:
            tokens, values = self._biases.added[place]
            changed = logits.clone() if changed is logits else changed
            if candidates is None:
                changed[row].index_add_(0, tokens, values)
            else:
                same = candidates[row].unsqueeze(1) == tokens
                changed[row] += (same * values).sum(1)
        if not may_be_hopeless:
            return changed
        # Where nothing is left the draft keeps its own law: a row must have something to draw.
        hopeless = changed.amax(-1, keepdim=True) == _NEVER
        return torch.where(hopeless, logits, changed)

    def _constrain(self, logits: Tensor, candidates: Tensor | None, drafts: Sequence[Tensor]) -> Tensor:
        assert self._walk is not None
        if drafts:
            tokens = drafts[-1].tolist()
            for place, row in self._constrained.items():
                self._walk.advance(place, tokens[row])
        bound = [place for place in self._walk.open_requests() if place in self._constrained]
        if not bound:
            return logits
        rows = [self._constrained[place] for place in bound]
        if rows == list(range(self._num_rows)):
            return logits.masked_fill(self._walk.banned(bound, candidates, logits.shape[1]), _NEVER)
        at = torch.tensor(rows)
        banned = self._walk.banned(bound, None if candidates is None else candidates[at], logits.shape[1])
        return logits.index_copy(0, at, logits[at].masked_fill_(banned, _NEVER))


class _Penalties:
    """Penalties of what is drafted: everything that does not change from slot to slot.

    ``row_of`` gives the row of each place that is drafted and penalised, at least one, in the order of places.
    """

    def __init__(self, one: PenalisedRequests, row_of: dict[int, int], num_rows: int) -> None:
        self._answers, self._table, self._coefficients = one.answers, one.rows, one.penalties
        device, rows = one.rows.device, list(row_of.values())
        if len(rows) < len(one.places):
            index = torch.tensor([n for n, place in enumerate(one.places) if place in row_of], device=device)
            self._table, self._coefficients = one.rows[index], one.penalties.select(index)
        # None: every row, in order.
        self._rows = None if rows == list(range(num_rows)) else torch.tensor(rows, device=device)
        self._counts: Tensor | None = None
        self._counted = 0

    def apply(self, logits: Tensor, candidates: Tensor | None, drafts: Sequence[Tensor]) -> Tensor:
        """Give logits [R, S or V] penalised for the answers and for the drafts before."""
        if candidates is None:
            counts = self._counts_of_all(drafts)
        else:
            listed = candidates if self._rows is None else candidates[self._rows]
            counts = self._answers.counts_at(self._table, listed)
            if drafts:
                earlier = torch.stack([self._own(tokens) for tokens in drafts], 1)
                counts = counts + (listed.unsqueeze(2) == earlier.unsqueeze(1)).sum(2)
        if self._rows is None:
            return penalised(logits, counts, self._coefficients)
        return logits.index_copy(0, self._rows, penalised(logits[self._rows], counts, self._coefficients))

    def _counts_of_all(self, drafts: Sequence[Tensor]) -> Tensor:
        """Count over the vocabulary, int32 [n, V]; a draft is added once, for this slot and those behind it."""
        if self._counts is None:
            self._counts = self._answers.counts(self._table)
        for tokens in drafts[self._counted :]:
            own = self._own(tokens).unsqueeze(1)
            self._counts.scatter_add_(1, own, torch.ones_like(own, dtype=self._counts.dtype))
        self._counted = len(drafts)
        return self._counts

    def _own(self, tokens: Tensor) -> Tensor:
        return tokens if self._rows is None else tokens[self._rows]
