"""Losses straight from hidden states, a few rows at a time, without keeping [M, V] tensors for the backward pass.

The embedding-sized GEMMs dominate a training step on a large vocabulary. Gradients with respect to the logits have a
closed form, so they are taken in the forward pass and each chunk's logits are dropped: one draft GEMM forward, one
backward, one target GEMM per distinct position. Equal to ``losses.slot_losses`` under autograd up to rounding.
Shape letters: M slots, P target rows, V vocabulary, d hidden size, r rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.losses import EPSILON, LossSums, LossWeights, SlotLosses, confidence_loss, weighted_sums


def chunked_loss(
    drafter: Drafter,
    h: Tensor,
    latents: Tensor | None,
    prev_tokens: Tensor,
    labels: Tensor,
    weights: Tensor,
    target_hidden: Tensor,
    target_rows: Tensor,
    *,
    coefficients: LossWeights | None = None,
    denominator: Tensor | None = None,
    chunk: int = 256,
) -> tuple[Tensor, SlotLosses, LossSums]:
    """Compute the training loss (Eq. 12) of flat slots.

    Parameters
    ----------
    drafter : Drafter
        Its ``lm_head`` is also the target's.
    h : [M, d]
        Post-norm draft hidden states, of valid slots only to save work.
    latents : [M, r] or None
        From ``forward.head_latents``.
    prev_tokens, labels : int64 [M]
    weights : fp32 [M]
        From ``losses.slot_weights``; zero or more.
    target_hidden : [P, d]
        The target's final-norm output at the positions that are needed.
    target_rows : int64 [M]
        Row of ``target_hidden`` that predicts each slot. Slots of equal row should be neighbours (sort by it): each
        chunk computes a row's logits once.
    coefficients : LossWeights, optional
        The paper's by default.
    denominator : fp32 scalar, optional
        As in ``LossSums.total``.
    chunk : int
        Slots per chunk; memory is about 5 * chunk * V * 4 bytes.

    Returns
    -------
    loss : fp32 scalar
        Differentiable in ``h``, ``latents``, W1, W2 and the confidence head.
    slots : SlotLosses
        Without gradient, for metrics.
    sums : LossSums
        Without gradient.
    """
    chosen = LossWeights() if coefficients is None else coefficients
    scale = weights / (weights.sum() if denominator is None else denominator).clamp_min(EPSILON)
    bias_weight = None if drafter.markov_head is None or latents is None else drafter.markov_head.markov_w2.weight
    coefficients_of = torch.tensor([chosen.ce, chosen.tv, chosen.soft], device=scale.device)
    token_loss, ce, tv, soft = _LinearLoss.apply(
        h,
        latents,
        bias_weight,
        drafter.lm_head.weight,
        target_hidden,
        target_rows,
        labels,
        coefficients_of[:, None] * scale,
        chosen.soft > 0,
        chunk,
    )
    accept = 1 - 0.5 * tv
    confidence = confidence_loss(
        None if drafter.confidence_head is None else drafter.confidence_logits(h, prev_tokens), accept
    )
    loss: Tensor = token_loss + chosen.confidence * (confidence * scale).sum()
    slots = SlotLosses(ce, tv, accept, confidence.detach(), soft)
    return loss, slots, weighted_sums(slots, weights)


class _LinearLoss(torch.autograd.Function):
    """Sum over slots of scaled CE, TV and soft CE (``scales`` [3, M]), with its gradients found on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        latents: Tensor | None,
        bias_weight: Tensor | None,
        head_weight: Tensor,
        target_hidden: Tensor,
        target_rows: Tensor,
        labels: Tensor,
        scales: Tensor,
        with_soft: bool,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        terms = torch.empty((3, len(h)), dtype=torch.float32, device=h.device)
        grad_h = torch.empty_like(h)
        grad_latents = None if latents is None else torch.empty_like(latents)
        # fp32 whatever the weight's dtype: it accumulates over chunks.
        grad_bias = None if bias_weight is None else torch.zeros_like(bias_weight, dtype=torch.float32)
        for start in range(0, len(h), chunk):
            rows = slice(start, start + chunk)
            logits = F.linear(h[rows], head_weight)
            if latents is not None and bias_weight is not None:
                logits = logits + F.linear(latents[rows], bias_weight)
            target_probs = _target_probs(target_hidden, target_rows[rows], head_weight)
            terms[:, rows], grad = _terms(logits, target_probs, labels[rows], scales[:, rows], with_soft)
            grad = grad.to(h.dtype)
            grad_h[rows] = grad @ head_weight
            if latents is not None and grad_latents is not None and bias_weight is not None and grad_bias is not None:
                grad_latents[rows] = grad @ bias_weight
                grad_bias += grad.T @ latents[rows]
        ctx.save_for_backward(grad_h, grad_latents, None if grad_bias is None else grad_bias.to(h.dtype))
        ce, tv, soft = terms.unbind()
        ctx.mark_non_differentiable(ce, tv, soft)
        return (terms * scales).sum(), ce, tv, soft

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = tuple(None if saved is None else saved * grads[0].to(saved.dtype) for saved in ctx.saved_tensors)
        return (*scaled, *(None,) * 7)


def _target_probs(target_hidden: Tensor, target_rows: Tensor, head_weight: Tensor) -> Tensor:
    rows, inverse = target_rows.unique_consecutive(return_inverse=True)
    return F.linear(target_hidden[rows], head_weight).float().softmax(-1)[inverse]


def _terms(
    logits: Tensor, target_probs: Tensor, labels: Tensor, scales: Tensor, with_soft: bool
) -> tuple[Tensor, Tensor]:
    """Return CE, TV and soft CE [3, n], and the gradient of their scaled sum by ``logits`` [n, V], all fp32."""
    logits = logits.float()
    at_label = labels[:, None]
    ce_scale, tv_scale, soft_scale = scales.unbind()
    normaliser = logits.logsumexp(-1)
    ce = normaliser - logits.gather(-1, at_label)[:, 0]
    soft = normaliser - torch.linalg.vecdot(target_probs, logits)
    probs = logits.softmax(-1)
    difference = probs - target_probs
    tv = difference.abs().sum(-1)
    # d TV / d logits = p * (s - <s, p>) with s the sign of p - q; d CE / d logits = p - onehot(label);
    # d soft CE / d logits = p - q.
    weighted = difference * soft_scale[:, None] if with_soft else None
    sign = difference.sign_()
    mean_sign = torch.linalg.vecdot(sign, probs)
    factor = sign.mul_(tv_scale[:, None]).add_((ce_scale - tv_scale * mean_sign)[:, None])
    grad = factor.mul_(probs)
    grad.scatter_add_(-1, at_label, -ce_scale[:, None])
    if weighted is not None:
        grad += weighted
    return torch.stack((ce, tv, soft)), grad
