"""What a step or an evaluation measured, added up over micro-batches and ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sgl_dspark.training.losses import LossSums, SlotLosses
from sgl_dspark.training.packing import PackedBatch
from sgl_dspark.training.ranks import Ranks


@dataclass(frozen=True)
class StepReport:
    """What one step or one evaluation measured; per-slot lists have gamma entries.

    Attributes
    ----------
    loss, ce, tv, confidence, soft : float
        Total, and weighted means of the terms (TV in [0, 2]).
    accept_rate : tuple of float
        Mean probability of acceptance at slot j given an accepted prefix, teacher-forced, temperature 1; NaN where no
        block reached the slot.
    expected_accept_len : float
        1 + sum over slots of the mean product of acceptance probabilities, over whole blocks; bonus included. NaN
        without a whole block.
    tokens : int
        Supervised tokens of the step's conversations.
    """

    loss: float
    ce: float
    tv: float
    confidence: float
    soft: float
    accept_rate: tuple[float, ...]
    expected_accept_len: float
    tokens: int = 0


class Tally:
    """Adds up one step's micro-batches.

    Parameters
    ----------
    gamma : int
    device : torch.device
    """

    def __init__(self, gamma: int, device: torch.device) -> None:
        self._terms = torch.zeros(6, device=device)
        self._counts, self._accepts = (torch.zeros(gamma, device=device) for _ in range(2))
        self._blocks = torch.zeros(2, device=device)
        self._tokens = 0

    def count(self, tokens: int) -> None:
        """Count supervised tokens."""
        self._tokens += tokens

    def add(self, batch: PackedBatch, loss: Tensor, slots: SlotLosses, sums: LossSums) -> None:
        """Take one micro-batch."""
        terms = (loss.detach(), sums.ce, sums.tv, sums.confidence, sums.soft, sums.weight)
        self._terms += torch.stack([term.detach() for term in terms])
        gamma = batch.gamma
        index = batch.slots % gamma
        self._counts.index_add_(0, index, torch.ones_like(slots.accept))
        self._accepts.index_add_(0, index, slots.accept)
        accept = slots.accept.new_full((batch.prev_tokens.numel(),), math.nan)
        accept[batch.slots] = slots.accept
        expected = accept.view(-1, gamma).cumprod(-1).sum(-1)
        whole = ~expected.isnan()
        self._blocks += torch.stack([expected[whole].sum(), whole.sum()])

    def report(self, ranks: Ranks, *, divided: bool = True) -> StepReport:
        """Return the figures over all ranks; ``divided`` says whether the losses were divided by the step's weight."""
        # fp64: token counts of large batches do not fit into fp32 exactly.
        parts = (self._terms, self._counts, self._accepts, self._blocks, self._blocks.new_tensor([self._tokens]))
        packed = ranks.total(torch.cat([part.double() for part in parts])).tolist()
        gamma = len(self._counts)
        loss, ce, tv, confidence, soft, weight = packed[:6]
        counts, accepts = packed[6 : 6 + gamma], packed[6 + gamma : 6 + 2 * gamma]
        expected, whole, tokens = packed[6 + 2 * gamma :]
        weight = max(weight, 1e-6)
        return StepReport(
            loss=loss if divided else loss / weight,
            ce=ce / weight,
            tv=tv / weight,
            confidence=confidence / weight,
            soft=soft / weight,
            accept_rate=tuple(a / n if n else math.nan for a, n in zip(accepts, counts, strict=True)),
            expected_accept_len=1 + expected / whole if whole else math.nan,
            tokens=int(tokens),
        )
