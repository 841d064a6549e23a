"""The device that a command runs on."""

from __future__ import annotations

import torch

from sgl_dspark.errors import ConfigError


def device_of(name: str) -> torch.device:
    """Resolve ``auto`` to CUDA where there is one; raises `ConfigError` for a device that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"the device is {name!r}; it must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("the device is 'cuda', but torch finds no CUDA device here; use cpu or auto")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def computes_bf16(device: torch.device) -> bool:
    """Whether a device multiplies in bf16; an x86 processor that does not converts every operand, and is slower so."""
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "AVX2", "AVX512"):
        return True
    return bool(torch.cpu._is_avx512_bf16_supported())
