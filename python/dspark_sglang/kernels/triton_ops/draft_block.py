"""All slots of every request's block in one launch: sequential bias, law, draw.

One program per request walks its slots from left to right; the token drawn at a slot picks the bias row of the next.

Shapes: R requests, G = gamma slots, S candidates per slot, r rank of the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from dspark_sglang.kernels.choice import power_of_two
from dspark_sglang.kernels.triton_ops.common import first_largest, first_passing

if TYPE_CHECKING:
    from torch import Tensor

TILE_VALUES = 4096
"""Values of W2 in registers at once, over candidates and ranks."""


@triton.jit
def markov_bias(w1, w2, w1_v, w2_v, prev, ids, inside, rank, SIZE: tl.constexpr, RANK: tl.constexpr):
    """Give W1[prev] . W2[ids], fp32 [SIZE], rounded to the weights' dtype as the head's own product is."""
    total = tl.zeros([SIZE], tl.float32)
    for start in range(0, rank, RANK):
        k = start + tl.arange(0, RANK)
        kept = k < rank
        latent = tl.load(w1 + prev * w1_v + k, mask=kept, other=0.0).to(tl.float32)
        rows = tl.load(w2 + ids[:, None] * w2_v + k[None, :], mask=inside[:, None] & kept[None, :], other=0.0)
        total += tl.sum(rows.to(tl.float32) * latent[None, :], 1)
    return total.to(w2.dtype.element_ty).to(tl.float32)


@triton.jit
def slot_law(logits, divisor):
    """Give softmax(logits / divisor) in fp32; lanes beyond the candidates hold minus infinity."""
    scaled = tl.div_rn(logits, divisor)
    powers = tl.exp(scaled - tl.max(scaled))
    return tl.div_rn(powers, tl.sum(powers))


@triton.jit
def draft_block_kernel(
    base, base_r, base_j, base_s, candidates, cand_r, cand_j, cand_s, w1, w2, w1_v, w2_v, anchors, temperatures,
    uniforms, tokens, probs, token_probs, gamma, size, rank,
    SIZE: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Draw the block of request ``program_id(0)``."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, SIZE)
    inside = index < size
    temperature = tl.load(temperatures + row).to(tl.float32)
    greedy = temperature == 0
    divisor = tl.zeros([SIZE], tl.float32) + tl.where(greedy, 1.0, temperature)
    prev = tl.load(anchors + row).to(tl.int64)
    for j in range(gamma):
        ids = tl.load(candidates + row * cand_r + j * cand_j + index * cand_s, mask=inside, other=0).to(tl.int64)
        logits = tl.load(base + row * base_r + j * base_j + index * base_s, mask=inside, other=float("-inf"))
        logits = logits.to(tl.float32)
        if w2 is not None:
            logits += markov_bias(w1, w2, w1_v, w2_v, prev, ids, inside, rank, SIZE, RANK)
        law = slot_law(logits, divisor)
        uniform = 0.0
        if uniforms is not None:
            uniform = tl.load(uniforms + row * gamma + j).to(tl.float64)
        through = tl.cumsum(law.to(tl.float64), 0)
        at = uniform * tl.sum(tl.where(index == size - 1, through, 0.0))
        drawn = first_passing(through, law, at, SIZE)
        drawn = tl.where(drawn < 0, size - 1, drawn)
        choice = tl.where(greedy, first_largest(logits, inside, SIZE), drawn)
        law = tl.where(greedy, (index == choice).to(tl.float32), law)
        prev = tl.sum(tl.where(index == choice, ids, 0))
        tl.store(tokens + row * gamma + j, prev)
        tl.store(token_probs + row * gamma + j, tl.sum(tl.where(index == choice, law, 0.0)))
        tl.store(probs + (row * gamma + j) * size + index, law, mask=inside)


def launch(
    base: Tensor,
    candidates: Tensor,
    weights: tuple[Tensor, Tensor] | None,
    anchors: Tensor,
    temperatures: Tensor,
    uniforms: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw every block.

    Parameters
    ----------
    base : fp32, bf16 or fp16 [R, G, S]
        Base logits; any strides.
    candidates : int64 [R, G, S]
        Any strides.
    weights : (W1 [V, r], W2 [V, r]) or None
        Of the Markov head, rows contiguous; None adds no bias.
    anchors : int64 [R]
    temperatures : float [R]
        0 marks a greedy row.
    uniforms : float [R, G], optional
        In [0, 1). Without them all rows must be greedy.

    Returns
    -------
    tokens int64 [R, G], probs fp32 [R, G, S], token_probs fp32 [R, G]
    """
    rows, gamma, size = base.shape
    tokens = torch.empty((rows, gamma), dtype=torch.int64, device=base.device)
    probs = torch.empty((rows, gamma, size), dtype=torch.float32, device=base.device)
    token_probs = torch.empty((rows, gamma), dtype=torch.float32, device=base.device)
    if rows == 0:
        return tokens, probs, token_probs
    w1, w2 = weights if weights is not None else (None, None)
    rank = 0 if w1 is None else w1.shape[1]
    width = max(power_of_two(size), 2)
    draft_block_kernel[(rows,)](
        base, *base.stride(), candidates, *candidates.stride(), w1, w2,
        0 if w1 is None else w1.stride(0), 0 if w2 is None else w2.stride(0),
        anchors.contiguous(), temperatures.contiguous(), None if uniforms is None else uniforms.contiguous(),
        tokens, probs, token_probs, gamma, size, rank,
        SIZE=width,
        RANK=max(16, min(power_of_two(max(rank, 1)), TILE_VALUES // width)), num_warps=4 if width <= 256 else 8,
    )  # fmt: skip
    return tokens, probs, token_probs
