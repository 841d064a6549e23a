"""Survival, and how many drafts of each request are admitted by it; one launch each, without a sort.

A slot's rank is the number of slots that come before it in the key (-survival, request, slot). Every program counts
that for one request's slots by reading all survivals: R * gamma of them, a few kilobytes that stay in cache.

Shapes: R requests, G = gamma slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from dspark_sglang.kernels.choice import power_of_two

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 128
TILE = 512


# Numbers that change from step to step are not compiled in.
@triton.jit(do_not_specialize=["requests"])
def survival_kernel(
    logits, logit_r, logit_j, inverse, inverse_r, inverse_j, biases, bias_r, bias_j, survival, requests, gamma,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Multiply the confidences of ``ROWS`` requests along their slots."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < requests
    # fp64 and one slot after the other: rounded to fp32, the products then never rise along a block.
    product = tl.full([ROWS], 1.0, tl.float64)
    for j in range(gamma):
        z = tl.load(logits + row * logit_r + j * logit_j, mask=inside, other=0.0).to(tl.float32)
        z = z * tl.load(inverse + row * inverse_r + j * inverse_j, mask=inside, other=1.0)
        z += tl.load(biases + row * bias_r + j * bias_j, mask=inside, other=0.0)
        confidence = tl.div_rn(1.0, 1.0 + tl.exp(-z))
        confidence = tl.where(confidence == confidence, confidence, 0.0)
        product *= confidence.to(tl.float64)
        tl.store(survival + row * gamma + j, product.to(tl.float32), mask=inside)


@triton.jit
def ranking_value(values):
    """Give what is compared: NaN ranks first, as in ``torch.sort``; it is not admitted."""
    values = values.to(tl.float32)
    return tl.where(values == values, values, float("inf"))


@triton.jit(do_not_specialize=["requests", "budget"])
def admit_kernel(
    survival, stride_r, stride_j, budget, device_budget, lens, requests, gamma, GAMMA: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Count the slots of request ``program_id(0)`` whose rank is below the budget."""
    request = tl.program_id(0)
    slots = tl.arange(0, GAMMA)
    real = slots < gamma
    place = request * gamma + slots
    own = tl.load(survival + request.to(tl.int64) * stride_r + slots * stride_j, mask=real, other=0.0)
    key = ranking_value(own)
    rank = tl.zeros([GAMMA], tl.int32)
    for start in range(0, requests * gamma, TILE):
        other = start + tl.arange(0, TILE)
        inside = other < requests * gamma
        at = (other // gamma).to(tl.int64) * stride_r + (other % gamma) * stride_j
        value = ranking_value(tl.load(survival + at, mask=inside, other=0.0))
        # Invariant: ties are broken by place alone, never by anything that a draft's own value could move.
        tied = (value[None, :] == key[:, None]) & (other[None, :] < place[:, None])
        before = ((value[None, :] > key[:, None]) | tied) & inside[None, :]
        rank += tl.sum(before.to(tl.int32), 1)
    limit = budget
    if device_budget is not None:
        limit = tl.load(device_budget)
    admitted = (rank < limit) & (own > 0) & real
    tl.store(lens + request, tl.sum(admitted.to(tl.int64)))


def launch_survival(logits: Tensor, inverse_temperatures: Tensor, biases: Tensor) -> Tensor:
    """Give survival fp32 [R, G]; parameters as in ``dspark_sglang.allocate.survival_of``, any strides."""
    rows, gamma = logits.shape
    survival = torch.empty((rows, gamma), dtype=torch.float32, device=logits.device)
    if survival.numel():
        inverse, shifts = inverse_temperatures.expand(rows, gamma), biases.expand(rows, gamma)
        survival_kernel[(triton.cdiv(rows, ROWS),)](
            logits, *logits.stride(), inverse, *inverse.stride(), shifts, *shifts.stride(), survival, rows, gamma,
            ROWS=ROWS,
        )  # fmt: skip
    return survival


def launch_admit(survival: Tensor, budget: int | Tensor) -> Tensor:
    """Give drafts per request, int64 [R]; parameters as in ``kernels.admission.admit``, any strides."""
    rows, gamma = survival.shape
    lens = torch.empty(rows, dtype=torch.int64, device=survival.device)
    if rows:
        on_device = budget if isinstance(budget, torch.Tensor) else None
        admit_kernel[(rows,)](
            survival, *survival.stride(), 0 if isinstance(budget, torch.Tensor) else budget, on_device, lens, rows,
            gamma, GAMMA=power_of_two(gamma), TILE=TILE,
        )  # fmt: skip
    return lens
