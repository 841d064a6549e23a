"""A sampled vocabulary for the losses of a target with a large head.

On few cores the head-sized GEMMs and softmaxes are nine tenths of a training step, although a domain uses a few
thousand of a vocabulary's tokens. Here a step's laws live on a *core* (tokens seen in the data, plus the step's
labels) and a fresh uniform sample of the rest, whose logits are raised by log(rest / sample) so that the softmax
denominator and the total variation are estimates of the full ones. Deviates from the paper, which uses the whole
vocabulary; the last part of a run, and every evaluation, does so too.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.eagle3 import Eagle3Drafter

Draft = Drafter | Eagle3Drafter

# Hidden rows grow by one constant feature that carries the correction; 32 keeps the GEMM's inner size aligned.
EXTRA = 32


class SampledVocabulary:
    """Slices of the head for one step after another.

    Parameters
    ----------
    head_weight : [V, d]
        The frozen head, in the dtype of the GEMMs.
    core : int64 [C]
        Distinct ids that are in every step.
    sample_size : int
        Ids drawn anew in every step from the others.
    """

    def __init__(self, head_weight: Tensor, core: Tensor, sample_size: int) -> None:
        self.head_weight, self.sample_size = head_weight, sample_size
        self._in_core = torch.zeros(head_weight.shape[0], dtype=torch.bool)
        self._in_core[core.cpu()] = True

    @classmethod
    def whole(cls, head_weight: Tensor) -> SampledVocabulary:
        """Return one that always is the whole vocabulary."""
        return cls(head_weight, torch.arange(head_weight.shape[0]), 0)

    def draw(self, labelled: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Choose one step's vocabulary.

        Parameters
        ----------
        labelled : bool [V]
            Ids that are labels of the step, on any rank: they are in, whatever is drawn.
        generator : torch.Generator
            On the CPU, so that every rank draws the same.

        Returns
        -------
        ids : int64 [n]
            Ascending.
        correction : fp32 [n]
            Added to the logits.
        """
        exact = self._in_core | labelled.cpu()
        rest = (~exact).nonzero().flatten()
        size = min(self.sample_size, len(rest))
        picked = rest[torch.randperm(len(rest), generator=generator)[:size]] if size else rest[:0]
        ids = torch.cat((exact.nonzero().flatten(), picked)).sort().values
        correction = math.log(len(rest) / size) if size else 0.0
        device = self.head_weight.device
        return ids.to(device), torch.where(exact[ids], 0.0, correction).to(device)

    def restrict(self, drafter: Draft, ids: Tensor, correction: Tensor) -> Drafter:
        """Return what the loss reads of ``drafter``, on the vocabulary ``ids`` only; gradients reach the original."""
        shape = (len(ids), self.head_weight.shape[1] + EXTRA)
        head = self.head_weight.new_zeros(shape)
        head[:, :-EXTRA] = self.head_weight[ids]
        # In two parts: rounded once to bf16, log(rest / sample) would be off by half a percent of the rest's mass.
        rounded = correction.to(head.dtype)
        head[:, -EXTRA] = rounded
        head[:, 1 - EXTRA] = (correction - rounded.float()).to(head.dtype)
        markov = confidence = None
        if isinstance(drafter, Drafter):
            confidence = drafter.confidence_head
            if drafter.markov_head is not None:
                bias = drafter.markov_head.markov_w2.weight[ids].to(head.dtype)
                markov = SimpleNamespace(markov_w2=SimpleNamespace(weight=bias))

        def confidence_logits(h: Tensor, prev_tokens: Tensor) -> Tensor:
            return cast(Drafter, drafter).confidence_logits(h[..., :-EXTRA].float(), prev_tokens)

        view = SimpleNamespace(
            config=drafter.config,
            lm_head=SimpleNamespace(weight=head),
            markov_head=markov,
            confidence_head=confidence,
            confidence_logits=confidence_logits,
        )
        return cast(Drafter, view)


def widen(rows: Tensor) -> Tensor:
    """Append the constant features: [n, d] to [n, d + EXTRA]; the head's columns there add up to the correction."""
    return torch.cat((rows, F.pad(rows.new_ones((rows.shape[0], 2)), (0, EXTRA - 2))), dim=-1)
