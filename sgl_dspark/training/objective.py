"""From a packed batch to its training loss: one module, so that DDP and FSDP2 can wrap it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.chains import chain_hidden
from sgl_dspark.training.forward import head_latents, packed_hidden
from sgl_dspark.training.fused import chunked_loss
from sgl_dspark.training.losses import LossSums, LossWeights, SlotLosses
from sgl_dspark.training.packing import PackedBatch
from sgl_dspark.training.vocabulary import Draft, SampledVocabulary, widen


class Objective(nn.Module):
    """The draft and what its loss needs.

    Parameters
    ----------
    draft : Drafter or Eagle3Drafter
        fp32 master weights, sharing the target's embedding and head.
    feature_scale : fp32 [m*d]
        Features are divided by it.
    bf16 : bool
        bf16 arithmetic.
    """

    def __init__(self, draft: Draft, feature_scale: Tensor, bf16: bool) -> None:
        super().__init__()
        self.draft = draft
        self.feature_scale: Tensor
        self.register_buffer("feature_scale", feature_scale, persistent=False)
        self.bf16 = bf16

    @property
    def dtype(self) -> torch.dtype:
        """Of arithmetic."""
        return torch.bfloat16 if self.bf16 else torch.float32

    def forward(
        self,
        batch: PackedBatch,
        vocabulary: SampledVocabulary,
        ids: Tensor,
        correction: Tensor,
        coefficients: LossWeights,
        denominator: Tensor,
    ) -> tuple[Tensor, SlotLosses, LossSums]:
        """Compute this batch's part of the loss.

        Parameters
        ----------
        batch : PackedBatch
        vocabulary : SampledVocabulary
        ids, correction : int64, fp32 [n]
            From ``vocabulary.draw``; every label is among the ids.
        coefficients : LossWeights
        denominator : fp32 scalar
            Sum of slot weights over the whole step: all micro-batches of all ranks.

        Returns
        -------
        loss : fp32 scalar
            The parts of a step add up to its loss.
        slots : SlotLosses
        sums : LossSums
        """
        draft = self.draft
        latents = None
        with torch.autocast(batch.features.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            features = batch.features / self.feature_scale.to(batch.features.dtype)
            if not len(batch.anchors):
                # Nothing to attend with; the loss below is zero.
                h = features.new_zeros((0, batch.gamma, draft.config.hidden_size))
            elif isinstance(draft, Drafter):
                h = packed_hidden(draft, features, batch)
                latents = head_latents(draft, h, batch.prev_tokens)
            else:
                h = chain_hidden(draft, features, batch)
        h = h.flatten(0, 1)[batch.slots].to(self.dtype)
        if latents is not None:
            latents = latents.flatten(0, 1)[batch.slots].to(self.dtype)
        loss, slots, sums = chunked_loss(
            vocabulary.restrict(draft, ids, correction),
            widen(h),
            latents,
            batch.prev_tokens.flatten()[batch.slots],
            torch.searchsorted(ids, batch.labels),
            batch.weights,
            widen(batch.target_hidden),
            batch.target_rows,
            coefficients=coefficients,
            denominator=denominator,
        )
        if not len(batch.slots):
            # Ranks exchange every gradient, so that even an empty share needs one of each parameter.
            loss = loss + sum((p * 0.0).sum() for p in self.parameters() if p.requires_grad)
        return loss, slots, sums
