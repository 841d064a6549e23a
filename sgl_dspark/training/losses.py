"""Cross-entropy, total variation and confidence losses over block slots (Eq. 9-12).

Two stages: per-slot terms on flat rows, so that a trainer may chunk and pack as it likes, then a weighted sum whose
denominator can be reduced over ranks before dividing. Shape letters: M flat slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LOSS_DECAY = 4.0
"""Slots that it takes for a slot's weight to fall by e. The paper writes its block size; released drafts used 4."""
EPSILON = 1e-6


@dataclass(frozen=True)
class LossWeights:
    """Coefficients of the three losses (Eq. 12), and of cross-entropy against the target's whole law (baselines)."""

    ce: float = 0.1
    tv: float = 0.9
    confidence: float = 1.0
    soft: float = 0.0


@dataclass(frozen=True)
class SlotLosses:
    """Per-slot terms, fp32 [M] each.

    Attributes
    ----------
    ce : negative log probability that the draft gives the label.
    tv : L1 distance of draft and target laws, in [0, 2].
    accept : probability that the target accepts a draft from this law, 1 - tv/2; without gradient.
    confidence : binary cross-entropy of the confidence against ``accept``; zeros without a confidence head.
    soft : cross-entropy against the target's law.
    """

    ce: Tensor
    tv: Tensor
    accept: Tensor
    confidence: Tensor
    soft: Tensor


@dataclass(frozen=True)
class LossSums:
    """Weighted sums over slots; ``weight`` is the common denominator. All fp32 scalars."""

    ce: Tensor
    tv: Tensor
    confidence: Tensor
    soft: Tensor
    weight: Tensor

    def total(self, coefficients: LossWeights | None = None, denominator: Tensor | None = None) -> Tensor:
        """Return the training loss (Eq. 12).

        Parameters
        ----------
        coefficients : LossWeights, optional
            The paper's by default.
        denominator : fp32 scalar, optional
            Sum of slot weights over all ranks, when this is one rank's share; the ranks' losses then add up to the
            loss of the whole batch. This rank's own by default.
        """
        chosen = LossWeights() if coefficients is None else coefficients
        weight = self.weight if denominator is None else denominator
        numerator = chosen.ce * self.ce + chosen.tv * self.tv + chosen.confidence * self.confidence
        numerator = numerator + chosen.soft * self.soft
        return numerator / weight.clamp_min(EPSILON)


def slot_weights(slot_valid: Tensor, decay: float = LOSS_DECAY) -> Tensor:
    """Return fp32 [..., gamma]: exp(-j/decay) for valid slot j, 0 elsewhere.

    Parameters
    ----------
    slot_valid : bool [..., gamma]
    decay : float
        Positive, in slots.
    """
    slots = torch.arange(slot_valid.shape[-1], device=slot_valid.device, dtype=torch.float32)
    return torch.exp(-slots / decay) * slot_valid


def slot_losses(
    draft_logits: Tensor, target_logits: Tensor, labels: Tensor, confidence_logits: Tensor | None
) -> SlotLosses:
    """Compute the per-slot terms at temperature 1, over the whole vocabulary, in fp32.

    Parameters
    ----------
    draft_logits : [M, V]
        With the sequential bias.
    target_logits : [M, V]
        Without gradient. Compute them once per position and index: neighbouring blocks share rows.
    labels : int64 [M]
    confidence_logits : fp32 [M] or None
        None when the draft has no confidence head.
    """
    log_probs = draft_logits.float().log_softmax(-1)
    # The same operations as for the draft, so that equal logits are at distance 0 exactly.
    target_probs = target_logits.detach().float().log_softmax(-1).exp()
    ce = -log_probs.gather(-1, labels[..., None])[..., 0]
    tv = (log_probs.exp() - target_probs).abs().sum(-1)
    soft = -(target_probs * log_probs).sum(-1)
    accept = 1 - 0.5 * tv.detach()
    return SlotLosses(ce, tv, accept, confidence_loss(confidence_logits, accept), soft)


def confidence_loss(confidence_logits: Tensor | None, accept: Tensor) -> Tensor:
    """Return binary cross-entropy [M] against the soft label ``accept`` [M] in [0, 1]; zeros without logits."""
    if confidence_logits is None:
        return torch.zeros_like(accept)
    # Rounding can push 1 - tv/2 just below 0, which is no probability.
    label = accept.clamp(0, 1)
    return F.binary_cross_entropy_with_logits(confidence_logits.float(), label, reduction="none")


def weighted_sums(slots: SlotLosses, weights: Tensor) -> LossSums:
    """Reduce per-slot terms with ``weights`` fp32 [M] from :func:`slot_weights`; weight 0 removes a slot altogether."""
    # A slot without weight may hold anything, infinities included: select, do not multiply.
    used = weights > 0
    terms = (slots.ce, slots.tv, slots.confidence, slots.soft)
    sums = [torch.where(used, term * weights, 0).sum() for term in terms]
    return LossSums(sums[0], sums[1], sums[2], sums[3], weights.sum())
