"""One optimiser step after another: schedule, losses, statistics, exact resumption (Sec. 4.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.batch import Batch, make_batch
from sgl_dspark.training.data import Conversation
from sgl_dspark.training.forward import blocks_hidden, head_latents
from sgl_dspark.training.fused import chunked_loss
from sgl_dspark.training.losses import LossSums, LossWeights, SlotLosses
from sgl_dspark.training.vocabulary import SampledVocabulary, widen


@dataclass(frozen=True)
class TrainingOptions:
    """Everything that decides a run besides data and draft shape; defaults are for one CPU core.

    Attributes
    ----------
    steps, warmup_steps : int
        Optimiser steps; linear warm-up, then cosine to zero.
    batch_size, num_anchors : int
        Conversations a step, blocks a conversation.
    learning_rate, clip_norm : float
    loss_decay : float
        Slots over which the loss weight falls by e.
    weights : LossWeights
    ce_first : float
        Fraction of the run in which cross-entropy counts fully. The gradient of TV is proportional to the draft's own
        probability, so it moves little while a new draft gives the right tokens none. 0 is the paper's recipe.
    full_vocabulary_from : float
        Fraction of the run after which a sampled vocabulary gives way to the whole one.
    bf16 : bool
        bf16 arithmetic with fp32 master weights.
    seed : int
    """

    steps: int
    warmup_steps: int = 100
    batch_size: int = 8
    num_anchors: int = 32
    learning_rate: float = 1e-3
    clip_norm: float = 1.0
    loss_decay: float = 4.0
    weights: LossWeights = LossWeights()
    ce_first: float = 0.0
    full_vocabulary_from: float = 0.9
    bf16: bool = True
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Learning rate of a 0-based step."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        progress = max(0.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        return self.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    def weights_at(self, step: int) -> LossWeights:
        """Loss coefficients of a 0-based step."""
        return replace(self.weights, ce=1.0) if step < self.ce_first * self.steps else self.weights


@dataclass(frozen=True)
class StepReport:
    """What one step or one evaluation measured; per-slot lists have gamma entries.

    Attributes
    ----------
    loss, ce, tv, confidence : float
        Total and weighted means of the terms (TV in [0, 2]).
    accept_rate : tuple of float
        Mean probability of acceptance at slot j given an accepted prefix, teacher-forced, temperature 1.
    expected_accept_len : float
        1 + sum over slots of the mean product of acceptance probabilities, over whole blocks; bonus included.
    """

    loss: float
    ce: float
    tv: float
    confidence: float
    accept_rate: tuple[float, ...]
    expected_accept_len: float


class Trainer:
    """Owns the optimiser and the random state of a run.

    Parameters
    ----------
    drafter : Drafter
        fp32, sharing the target's embedding and head; trained in place.
    options : TrainingOptions
    feature_scale : fp32 [m*d]
        Features are divided by it before ``fc``; :func:`fold_feature_scale` moves it into the saved weights.
    vocabulary : SampledVocabulary, optional
        For targets whose head dominates the step.
    """

    def __init__(
        self,
        drafter: Drafter,
        options: TrainingOptions,
        feature_scale: Tensor,
        vocabulary: SampledVocabulary | None = None,
    ) -> None:
        self.drafter, self.options, self.vocabulary = drafter, options, vocabulary
        self.feature_scale = feature_scale
        self.step = 0
        self.random = torch.Generator().manual_seed(options.seed)
        self._compute = torch.bfloat16 if options.bf16 else torch.float32
        self._head = drafter.lm_head.weight.detach().to(self._compute)
        trained = [p for p in drafter.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, weight_decay=0.0, fused=True)

    def train_step(self, conversations: Sequence[Conversation]) -> StepReport:
        """Advance one step on one batch."""
        batch = self._batch(conversations, self.random)
        sampled = self.vocabulary
        if self.step >= self.options.full_vocabulary_from * self.options.steps:
            sampled = None
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.rate_at(self.step)
        loss, slots, sums = self._loss(batch, sampled)
        self._optimizer.zero_grad(set_to_none=True)
        if len(batch.slots):
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.options.clip_norm)
            self._optimizer.step()
        self.step += 1
        return self._report(batch, float(loss.detach()), slots, sums)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Sequence[Conversation]], seed: int = 1) -> StepReport:
        """Measure on held-out batches over the whole vocabulary, with anchors drawn from ``seed``."""
        random = torch.Generator().manual_seed(seed)
        reports = []
        for conversations in batches:
            batch = self._batch(conversations, random)
            loss, slots, sums = self._loss(batch, None)
            reports.append(self._report(batch, float(loss), slots, sums))
        return _mean_report(reports)

    def state(self) -> dict[str, Any]:
        """Return everything that a later :meth:`load_state` needs to continue exactly."""
        trained = {n: p.detach() for n, p in self.drafter.named_parameters() if p.requires_grad}
        return {
            "step": self.step,
            "drafter": trained,
            "optimizer": self._optimizer.state_dict(),
            "random": self.random.get_state(),
            "feature_scale": self.feature_scale,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self.step = state["step"]
        self.drafter.load_state_dict(state["drafter"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        self.random.set_state(state["random"])
        self.feature_scale = state["feature_scale"]

    def _batch(self, conversations: Sequence[Conversation], random: torch.Generator) -> Batch:
        options = self.options
        gamma = self.drafter.config.gamma
        return make_batch(conversations, options.num_anchors, gamma, options.loss_decay, random, self._compute)

    def _loss(self, batch: Batch, vocabulary: SampledVocabulary | None) -> tuple[Tensor, SlotLosses, LossSums]:
        drafter, slots = self.drafter, batch.slots
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.options.bf16):
            features = batch.features / self.feature_scale.to(batch.features.dtype)
            h = blocks_hidden(drafter, features, batch.ids, batch.anchors, batch.block_keep)
            latents = head_latents(drafter, h, batch.prev_tokens)
        h = h.flatten(0, 2)[slots].to(self._compute)
        if latents is not None:
            latents = latents.flatten(0, 2)[slots].to(self._compute)
        prev, labels, hidden = batch.prev_tokens.flatten()[slots], batch.labels, batch.target_hidden
        view = vocabulary or SampledVocabulary(self._head, torch.arange(len(self._head)), 0)
        ids, correction = view.draw(labels, self.random)
        places = torch.searchsorted(ids, labels)
        restricted = view.restrict(drafter, ids, correction)
        return chunked_loss(
            restricted,
            widen(h),
            latents,
            prev,
            places,
            batch.weights,
            widen(hidden),
            batch.target_rows,
            coefficients=self.options.weights_at(self.step),
        )

    def _report(self, batch: Batch, loss: float, slots: SlotLosses, sums: LossSums) -> StepReport:
        gamma = self.drafter.config.gamma
        weight = max(float(sums.weight), 1e-6)
        counts = torch.zeros(gamma).index_add_(0, batch.slot_index, torch.ones(len(batch.slots)))
        accepts = torch.zeros(gamma).index_add_(0, batch.slot_index, slots.accept)
        blocks = torch.zeros(batch.prev_tokens.numel())
        blocks[batch.slots] = slots.accept
        blocks = blocks.view(-1, gamma)
        filled = torch.zeros(batch.prev_tokens.numel(), dtype=torch.bool)
        filled[batch.slots] = True
        whole = blocks[filled.view(-1, gamma).all(-1)]
        expected = float(1 + whole.cumprod(-1).sum(-1).mean()) if len(whole) else math.nan
        return StepReport(
            loss=loss,
            ce=float(sums.ce) / weight,
            tv=float(sums.tv) / weight,
            confidence=float(sums.confidence) / weight,
            accept_rate=tuple((accepts / counts.clamp_min(1)).tolist()),
            expected_accept_len=expected,
        )


def _mean_report(reports: Sequence[StepReport]) -> StepReport:
    def mean(values: Iterable[float]) -> float:
        finite = [v for v in values if not math.isnan(v)]
        return sum(finite) / len(finite) if finite else math.nan

    return StepReport(
        loss=mean(r.loss for r in reports),
        ce=mean(r.ce for r in reports),
        tv=mean(r.tv for r in reports),
        confidence=mean(r.confidence for r in reports),
        accept_rate=tuple(mean(values) for values in zip(*(r.accept_rate for r in reports), strict=True)),
        expected_accept_len=mean(r.expected_accept_len for r in reports),
    )


def measure_feature_scale(conversations: Iterable[Conversation]) -> Tensor:
    """Root mean square of every feature over supervised tokens, fp32 [m*d].

    Targets have a few feature dimensions thousands of times larger than the rest; dividing by this lets ``fc`` learn
    all of them at one rate.
    """
    total, count = None, 0
    for conversation in conversations:
        rows = conversation.features[conversation.loss_mask[:-1]].float()
        squares = rows.square().sum(0)
        total = squares if total is None else total + squares
        count += len(rows)
    if total is None or count == 0:
        raise ValueError("no supervised token to measure features on")
    return (total / count).sqrt().clamp_min(1e-6)


@torch.no_grad()
def fold_feature_scale(drafter: Drafter, feature_scale: Tensor) -> None:
    """Divide the columns of ``fc`` by the scale, so that the drafter takes raw features."""
    drafter.fc.weight /= feature_scale
