"""Rank drafts by survival and admit as many as the budget holds: kernels on a CUDA device, else plain torch.

Shapes: R requests, G = gamma slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dspark_sglang import allocate as reference
from dspark_sglang.kernels.choice import kernels_run_on

if TYPE_CHECKING:
    from torch import Tensor


def survival_of(logits: Tensor, inverse_temperatures: Tensor, biases: Tensor) -> Tensor:
    """Turn confidence logits into the chance that a draft and all before it are accepted (Sec. 3.2.1).

    Parameters
    ----------
    logits : fp32, bf16 or fp16 [R, G]
        Of this step.
    inverse_temperatures, biases : fp32 [R, G]
        Calibration of each request's kind.

    Returns
    -------
    fp32 [R, G]
        Never rises along slots. A confidence that is NaN makes its slot and every later one 0.
    """
    if not kernels_run_on(logits.device):
        return reference.survival_of(logits, inverse_temperatures, biases)
    from dspark_sglang.kernels.triton_ops.admission import launch_survival

    return launch_survival(logits, inverse_temperatures, biases)


def admit(survival: Tensor, budget: int | Tensor) -> Tensor:
    """Admit the first ``budget`` drafts in the order (-survival, request, slot); equal in both implementations.

    Parameters
    ----------
    survival : float [R, G]
        In [0, 1], of this step, non-increasing along slots; 0 is never admitted. Zeros make rows that only pad a
        captured batch, and slots beyond what a request can use, come last.
    budget : int or int64 scalar on the same device
        K, at least 0, anchors excluded. A tensor is not read back, so that replays of a graph can change it.

    Returns
    -------
    int64 [R]
        Drafts of each request: a prefix of its block. The verify length is one more, for the anchor.
    """
    if kernels_run_on(survival.device):
        from dspark_sglang.kernels.triton_ops.admission import launch_admit

        return launch_admit(survival, budget)
    if isinstance(budget, torch.Tensor):
        return reference.admit_within(survival, budget)
    return reference.admit(survival, budget)
