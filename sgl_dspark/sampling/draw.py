"""Draw tokens from explicit laws, so that the law in hand and the law that was drawn from are the same one."""

from __future__ import annotations

import torch
from torch import Tensor


def uniforms(*shape: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Give fp64 uniforms in [0, 1).

    fp64 because 24 random bits cannot reach tokens below 6e-8, and the tail of a 49k vocabulary is made of these.
    """
    return torch.rand(shape, dtype=torch.float64, device=device, generator=generator)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one index per row by inverting the cumulative weights at a uniform.

    The sums run in fp64, where adding 49k fp32 weights rounds by 1e-16 and not by 1e-7 each, so that every index is
    drawn with its weight over the total. Indices of weight 0 are never drawn.

    Parameters
    ----------
    weights : fp32 or fp64 [..., N]
        At least 0, finite; at least one positive in each row. They need not sum to 1.
    uniforms : float [...]
        In [0, 1), fp64 outside tests.

    Returns
    -------
    int64 [...]
        In [0, N), also for rows that break the conditions above (NaN), so that a caller never indexes out of range.
    """
    through = weights.cumsum(-1, dtype=torch.float64)
    at = uniforms.unsqueeze(-1) * through[..., -1:]
    return torch.searchsorted(through, at, right=True).squeeze(-1).clamp_(max=weights.shape[-1] - 1)
