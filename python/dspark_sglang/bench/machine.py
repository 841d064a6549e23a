"""The machine as a report names it."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sgl_dspark.cores import has_gpu, usable_cores

_PACKAGES = ("sgl-dspark", "sglang", "torch", "transformers", "numpy", "aiohttp")
# Environment that changes what is measured.
_VARIABLES = ("OMP_NUM_THREADS", "SGL_DSPARK_WORKER", "SGL_DSPARK_SHORTLIST", "CUDA_VISIBLE_DEVICES")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the figures depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def describe() -> dict[str, Any]:
    """Processor, cores, memory, GPUs, system and the environment variables that matter."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cores()) or None,
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "system": platform.platform(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "load_average_1m": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return None


def _gpus() -> list[str]:
    if not has_gpu() or shutil.which("nvidia-smi") is None or sys.platform != "linux":
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    reply = subprocess.run(command, capture_output=True, text=True, check=False)
    return reply.stdout.split("\n")[:-1] if reply.returncode == 0 else []
