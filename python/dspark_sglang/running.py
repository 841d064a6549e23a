"""Requests of one decode step, and what was drafted for them, where the device ranks.

Shape legend: R requests, G = gamma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from dspark_sglang.sampling_bridge import RowSampling
    from dspark_sglang.verify import BlockLayout
    from sgl_dspark.sampling.block import DraftBlock


@dataclass(frozen=True)
class Running:
    """Requests of one step.

    Attributes
    ----------
    anchors, seq_lens, request_rows : int64 [R]
        On the device.
    layout : BlockLayout
    rows : RowSampling
    kinds : int64 [R]
        Which calibration each has.
    drafted : int64 tensor [n] on the host, or None
        Requests that draft; None for all.
    """

    anchors: Tensor
    seq_lens: Tensor
    request_rows: Tensor
    layout: BlockLayout
    rows: RowSampling
    kinds: np.ndarray
    drafted: Tensor | None = None


@dataclass(frozen=True)
class Proposal:
    """Drafts of R requests, and what is verified of them; ``lens`` and ``survival`` of those that drafted."""

    block: DraftBlock
    verify_lens: Tensor
    lens: Tensor
    survival: Tensor
