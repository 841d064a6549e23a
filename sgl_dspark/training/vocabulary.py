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
        self._in_core[core] = True

    def draw(self, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return this step's ids int64 [n], ascending, and the logit corrections fp32 [n]."""
        exact = self._in_core.clone()
        exact[labels] = True
        rest = (~exact).nonzero().flatten()
        size = min(self.sample_size, len(rest))
        # Nothing is drawn from the generator for a whole vocabulary, so that evaluation leaves its state alone.
        picked = rest[torch.randperm(len(rest), generator=generator)[:size]] if size else rest[:0]
        ids = torch.cat((exact.nonzero().flatten(), picked)).sort().values
        correction = math.log(len(rest) / size) if size else 0.0
        return ids, torch.where(exact[ids], 0.0, correction)

    def restrict(self, drafter: Drafter, ids: Tensor, correction: Tensor) -> Drafter:
        """Return what the loss reads of ``drafter``, on the vocabulary ``ids`` only; gradients reach the original."""
        head = torch.zeros((len(ids), self.head_weight.shape[1] + EXTRA), dtype=self.head_weight.dtype)
        head[:, :-EXTRA] = self.head_weight[ids]
        head[:, -EXTRA] = correction.to(head.dtype)
        markov = None
        if drafter.markov_head is not None:
            bias = drafter.markov_head.markov_w2.weight[ids].to(head.dtype)
            markov = SimpleNamespace(markov_w2=SimpleNamespace(weight=bias))
        view = SimpleNamespace(
            config=drafter.config,
            lm_head=SimpleNamespace(weight=head),
            markov_head=markov,
            confidence_head=drafter.confidence_head,
            confidence_logits=lambda h, prev: drafter.confidence_logits(h[..., :-EXTRA].float(), prev),
        )
        return cast(Drafter, view)


def widen(rows: Tensor) -> Tensor:
    """Append the constant feature: [n, d] to [n, d + EXTRA], whose head column is the correction."""
    return torch.cat((rows, F.pad(rows.new_ones((rows.shape[0], 1)), (0, EXTRA - 1))), dim=-1)
