"""Whether an operation runs as a Triton kernel or as its torch reference."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dspark_sglang.switches import TRITON_KERNELS, switched_on

if TYPE_CHECKING:
    import torch


def interpreted() -> bool:
    """Tell whether Triton's interpreter stands in for a device, as in the tests (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def kernels_run_on(device: torch.device) -> bool:
    """Tell whether tensors on ``device`` go to a kernel: CUDA only, and not with ``SGL_DSPARK_TRITON=0``."""
    return (device.type == "cuda" or interpreted()) and switched_on(TRITON_KERNELS)


def power_of_two(count: int) -> int:
    """Give the least power of two that holds ``count`` >= 1: what a kernel's tiles are made of."""
    return 1 << (count - 1).bit_length()
