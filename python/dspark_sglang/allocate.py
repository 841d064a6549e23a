"""Which drafts the admitted budget goes to, ranked on the device by this step's own confidences (Sec. 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def survival_of(logits: Tensor, inverse_temperatures: Tensor, biases: Tensor) -> Tensor:
    """Turn confidence logits into the chance that a draft and all before it are accepted (Sec. 3.2.1).

    Parameters
    ----------
    logits : fp32 [R, gamma]
    inverse_temperatures, biases : fp32 [R, gamma]
        Calibration of each request's kind.

    Returns
    -------
    fp32 [R, gamma]
        Non-increasing along slots; NaN counts as 0.
    """
    confidence = torch.sigmoid(logits * inverse_temperatures + biases)
    return torch.cumprod(confidence.nan_to_num_(0.0), 1)


def admit(survival: Tensor, budget: int) -> Tensor:
    """Admit the ``budget`` drafts that most likely survive.

    Parameters
    ----------
    survival : fp32 [R, gamma]
        Of this step, non-increasing along slots; 0 is never admitted.
    budget : int
        Drafts, anchors excluded.

    Returns
    -------
    int64 [R]
        Drafts of each request: a prefix of its block.
    """
    # Invariant: the key is (-survival, request, slot). A stable sort over request-major slots breaks ties by position
    # alone, so that whether a draft is admitted never depends on its own token.
    order = torch.sort(survival.reshape(-1), descending=True, stable=True).indices[:budget]
    admitted = torch.zeros(survival.numel(), dtype=torch.bool, device=survival.device)
    admitted[order] = True
    return (admitted.view_as(survival) & (survival > 0)).sum(1)


def admit_within(survival: Tensor, budget: Tensor) -> Tensor:
    """Do what `admit` does for a budget that lies on the device, in operations of fixed shape.

    Parameters
    ----------
    survival : fp32 [R, gamma]
    budget : int64 scalar

    Returns
    -------
    int64 [R]
    """
    flat = survival.reshape(-1)
    # Invariant: as in `admit`, ties are broken by place alone.
    order = torch.sort(flat, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(flat.numel(), device=flat.device))
    return ((rank < budget) & (flat > 0)).view_as(survival).sum(1)
