"""One optimiser step after another: schedule, losses, statistics, exact resumption (Sec. 4.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.data.cache import Conversation
from sgl_dspark.errors import DataError
from sgl_dspark.training.checkpoint import load_training_state, training_state
from sgl_dspark.training.losses import LossWeights
from sgl_dspark.training.objective import Objective
from sgl_dspark.training.packing import PackedBatch, pack, seed_of
from sgl_dspark.training.ranks import Ranks, Strategy
from sgl_dspark.training.report import StepReport, Tally
from sgl_dspark.training.vocabulary import Draft, SampledVocabulary

# Held-out conversations a forward, where the run sets no micro-batch.
_EVALUATED = 8


@dataclass(frozen=True)
class TrainingOptions:
    """Everything that decides a run besides data and draft shape; defaults are for one CPU core.

    Attributes
    ----------
    steps, warmup_steps : int
        Optimiser steps; linear warm-up, then cosine to zero.
    num_anchors : int
        Blocks a conversation, at most.
    micro_batch_size : int or None
        Conversations a forward; a rank's whole share if None.
    learning_rate, clip_norm, weight_decay : float
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
    num_anchors: int = 32
    micro_batch_size: int | None = None
    learning_rate: float = 1e-3
    clip_norm: float = 1.0
    weight_decay: float = 0.0
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


class Trainer:
    """Owns the optimiser of a run. All randomness is a function of the seed and the step, so nothing else is kept.

    Parameters
    ----------
    draft : Drafter or Eagle3Drafter
        fp32, on the device of the run, sharing the target's embedding and head; trained in place.
    options : TrainingOptions
    feature_scale : fp32 [m*d]
        Features are divided by it before ``fc``; :func:`fold_feature_scale` moves it into the saved weights.
    vocabulary : SampledVocabulary, optional
        For targets whose head dominates the step.
    ranks : Ranks
    strategy : {"ddp", "fsdp"}
    """

    def __init__(
        self,
        draft: Draft,
        options: TrainingOptions,
        feature_scale: Tensor,
        vocabulary: SampledVocabulary | None = None,
        ranks: Ranks | None = None,
        strategy: Strategy = "ddp",
    ) -> None:
        self.drafter, self.options = draft, options
        self.ranks = ranks or Ranks()
        self.step = self.tokens = 0
        self.device = draft.fc.weight.device
        head = draft.lm_head.weight.detach()
        self._objective = Objective(draft, feature_scale.to(self.device), options.bf16)
        self._whole = SampledVocabulary.whole(head.to(self._objective.dtype))
        self._sampled = vocabulary or self._whole
        self._wrapped = self.ranks.wrap(self._objective, strategy)
        trained = [p for p in draft.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            trained, lr=options.learning_rate, weight_decay=options.weight_decay, fused=self.ranks.world == 1
        )

    @property
    def feature_scale(self) -> Tensor:
        """What features are divided by, fp32 [m*d]."""
        return self._objective.feature_scale

    def train_step(self, share: Sequence[tuple[int, Conversation]]) -> StepReport:
        """Advance one step.

        Parameters
        ----------
        share : sequence of (int, Conversation)
            This rank's part of the global batch, each conversation with its place in it.

        Raises
        ------
        DataError
            If a gradient is not finite; nothing of the step is applied.
        """
        options = self.options
        batches = self._micro_batches(share, self.step)
        whole = self.step >= options.full_vocabulary_from * options.steps
        vocabulary = self._whole if whole else self._sampled
        ids, correction = self._draw(vocabulary, batches, self.step)
        denominator = self._denominator(batches)
        for group in self._optimizer.param_groups:
            group["lr"] = options.rate_at(self.step)
        self._optimizer.zero_grad(set_to_none=True)
        tally = Tally(self.drafter.config.gamma, self.device)
        tally.count(sum(int(c.loss_mask.sum()) for _, c in share))
        for index, batch in enumerate(batches):
            coefficients = options.weights_at(self.step)
            last = index == len(batches) - 1
            with nullcontext() if last else self.ranks.without_sync(self._wrapped):
                loss, slots, sums = self._wrapped(batch, vocabulary, ids, correction, coefficients, denominator)
                # Ranks average their gradients; the loss is their sum.
                (loss * self.ranks.world).backward()
            tally.add(batch, loss.detach(), slots, sums)
        if float(denominator) > 0:
            # Sync: the norm is that of all ranks, so that they stop alike.
            norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), options.clip_norm)
            if not math.isfinite(float(norm)):
                raise DataError(
                    f"the gradient of step {self.step} is not finite; the saved state is from before. Look for states "
                    "that are not finite in the data, or lower optim.learning_rate."
                )
            self._optimizer.step()
        self.step += 1
        report = tally.report(self.ranks)
        self.tokens += report.tokens
        return report

    @torch.no_grad()
    def evaluate(self, conversations: Sequence[Conversation]) -> StepReport:
        """Measure on held-out conversations over the whole vocabulary, with anchors that are always the same.

        The result does not depend on batch sizes. Every rank measures all of it, since a sharded draft needs all ranks
        in every forward.
        """
        tally, size = Tally(self.drafter.config.gamma, self.device), self.options.micro_batch_size or _EVALUATED
        everything = torch.ones(self.drafter.config.vocab_size, dtype=torch.bool)
        ids, correction = self._whole.draw(everything, torch.Generator())
        for first in range(0, len(conversations), size):
            part = conversations[first : first + size]
            batch = self._pack(part, [seed_of("held-out", first + index) for index in range(len(part))])
            one = torch.ones((), device=self.device)
            tally.add(batch, *self._wrapped(batch, self._whole, ids, correction, self.options.weights, one))
        return tally.report(Ranks(), divided=False)

    def state(self) -> dict[str, Any]:
        """Return everything that a later :meth:`load_state` needs to continue exactly; every rank must ask."""
        found = training_state(self.drafter, self._wrapped, self._optimizer, self.ranks)
        return {"step": self.step, "tokens": self.tokens, "feature_scale": self.feature_scale.cpu(), **found}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        load_training_state(self.drafter, self._wrapped, self._optimizer, self.ranks, state)
        self.step, self.tokens = state["step"], state["tokens"]
        self._objective.feature_scale = state["feature_scale"].to(self.device)

    def _micro_batches(self, mine: Sequence[tuple[int, Conversation]], step: int) -> list[PackedBatch]:
        size = self.options.micro_batch_size or max(1, len(mine))
        chunks = [mine[i : i + size] for i in range(0, len(mine), size)]
        return [
            self._pack([c for _, c in part], [seed_of(self.options.seed, step, i) for i, _ in part]) for part in chunks
        ]

    def _pack(self, conversations: Sequence[Conversation], seeds: Sequence[int]) -> PackedBatch:
        options = self.options
        gamma, dtype = self.drafter.config.gamma, self._objective.dtype
        return pack(conversations, seeds, options.num_anchors, gamma, options.loss_decay, dtype).to(self.device)

    def _labelled(self, batches: Sequence[PackedBatch]) -> Tensor:
        """Mark the ids that are labels, bool [V]."""
        flags = torch.zeros(self.drafter.config.vocab_size, dtype=torch.bool, device=self.device)
        for batch in batches:
            flags[batch.labels] = True
        return flags

    def _draw(self, vocabulary: SampledVocabulary, batches: Sequence[PackedBatch], step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed_of(self.options.seed, step, "vocabulary"))
        return vocabulary.draw(self.ranks.any(self._labelled(batches)), generator)

    def _denominator(self, batches: Sequence[PackedBatch]) -> Tensor:
        """Sum the slot weights of the whole step: micro-batches of all ranks count by their slots, exactly."""
        return self.ranks.total(torch.stack([batch.weights.sum() for batch in batches]).sum())


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
def fold_feature_scale(drafter: Draft, feature_scale: Tensor) -> None:
    """Divide the columns of ``fc`` by the scale, so that the drafter takes raw features."""
    drafter.fc.weight /= feature_scale
