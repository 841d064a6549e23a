"""Draw every request's block: one kernel for all slots on a CUDA device, else ``sgl_dspark.sampling.block``.

Shapes: R requests, G = gamma slots, V vocabulary, S shortlist, d hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dspark_sglang.kernels.choice import kernels_run_on
from sgl_dspark.model.heads import MarkovHead
from sgl_dspark.sampling import block as reference
from sgl_dspark.sampling.block import DraftBlock, candidates_of, confidence_of
from sgl_dspark.sampling.draw import uniforms as fresh_uniforms
from sgl_dspark.sampling.warp import greediness

if TYPE_CHECKING:
    from torch import Tensor

    from sgl_dspark.sampling.protocols import BlockDrafter, SlotAdjustment
    from sgl_dspark.sampling.warp import Greediness

MAX_SHORTLIST = 1024
"""Candidates that one program holds in registers."""


@torch.no_grad()
def sample_block(
    drafter: BlockDrafter,
    h: Tensor,
    anchor_tokens: Tensor,
    temperatures: Tensor,
    *,
    shortlist: int | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    greedy: Greediness | None = None,
    adjustment: SlotAdjustment | None = None,
    by_token: bool = False,
) -> DraftBlock:
    """Draw every request's block, slot by slot, and the confidence of each slot (Sec. 3.1, Eq. 4-8).

    The kernel serves the vanilla head and no head, over a shortlist of at most ``MAX_SHORTLIST``, without adjustment.
    Its law equals the reference's to fp32 rounding, and its draws where no uniform falls into that rounding; the
    law returned is the one drawn from either way. With ``greedy`` given it reads nothing back.

    Parameters
    ----------
    drafter, h, anchor_tokens, temperatures, shortlist, uniforms, generator, greedy, adjustment, by_token
        As in ``sgl_dspark.sampling.block.sample_block``.

    Returns
    -------
    DraftBlock
    """
    weights = _kernel_weights(drafter, h, shortlist, adjustment)
    if weights is None:
        return reference.sample_block(
            drafter,
            h,
            anchor_tokens,
            temperatures,
            shortlist=shortlist,
            uniforms=uniforms,
            generator=generator,
            greedy=greedy,
            adjustment=adjustment,
            by_token=by_token,
        )
    greedy = greediness(temperatures == 0) if greedy is None else greedy
    if greedy == "all":
        uniforms = None
    elif uniforms is None:
        uniforms = fresh_uniforms(*h.shape[:2], device=h.device, generator=generator)
    base, candidates = candidates_of(drafter, h, shortlist, by_token=by_token)
    assert candidates is not None
    from dspark_sglang.kernels.triton_ops.draft_block import launch

    tokens, probs, token_probs = launch(base, candidates, weights or None, anchor_tokens, temperatures, uniforms)
    confidence = confidence_of(drafter, h, anchor_tokens, tokens)
    if greedy == "all":
        return DraftBlock(tokens, confidence)
    return DraftBlock(tokens, confidence, candidates, probs, token_probs)


def _kernel_weights(
    drafter: BlockDrafter, h: Tensor, shortlist: int | None, adjustment: SlotAdjustment | None
) -> tuple[()] | tuple[Tensor, Tensor] | None:
    """Give W1 and W2 of the head (nothing without a head) if the kernel serves this draft, else None."""
    if not kernels_run_on(h.device) or adjustment is not None or h.dtype == torch.float64:
        return None
    if shortlist is None or not 1 <= shortlist <= min(MAX_SHORTLIST, drafter.vocab_size - 1):
        return None
    head = drafter.markov_head
    if head is None:
        return ()
    # Other heads project the hidden state as well: torch's products serve them.
    if type(head) is not MarkovHead:
        return None
    w1, w2 = head.markov_w1.weight, head.markov_w2.weight
    return (w1, w2) if w1.stride(1) == 1 and w2.stride(1) == 1 else None
