"""The machine as a report names it, and which cores server and client run on."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from dspark_sglang.bench import BenchError

_PACKAGES = ("sgl-dspark", "sglang", "torch", "transformers", "numpy", "aiohttp")
# Environment that changes what is measured.
_VARIABLES = ("OMP_NUM_THREADS", "SGL_DSPARK_WORKER", "SGL_DSPARK_SHORTLIST", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Cores:
    """Cores of the server and of the client; None when they are not pinned.

    Attributes
    ----------
    server, client : frozenset of int, or None
    reason : str
        How this came about, for the report.
    """

    server: frozenset[int] | None
    client: frozenset[int] | None
    reason: str

    def __str__(self) -> str:
        if self.server is None or self.client is None:
            return f"not pinned ({self.reason})"
        return f"server on core {_ranges(self.server)}, client on core {_ranges(self.client)}"


def usable_cores() -> frozenset[int]:
    """Cores that this process may run on; empty where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def plan_cores(choice: str, usable: frozenset[int], *, threads: int, gpu: bool) -> Cores:
    """Divide the cores between server and client.

    Parameters
    ----------
    choice : str
        ``auto``, ``none``, or ``SERVER:CLIENT``, each a list such as ``0-3,6``.
    usable : frozenset of int
        Cores to choose from.
    threads : int
        Threads of the model on a CPU.
    gpu : bool
        With a GPU the server gets every core but the client's; on a CPU as many as the model has threads.

    Raises
    ------
    BenchError
        If ``choice`` cannot be read or names a core that is not usable.
    """
    if choice == "none":
        return Cores(None, None, "--pin none")
    if not usable:
        return Cores(None, None, "this system does not support it")
    if choice == "auto":
        if len(usable) < 2:
            return Cores(None, None, "only one core is usable")
        *rest, last = sorted(usable)
        return Cores(frozenset(rest if gpu else rest[: max(1, threads)]), frozenset([last]), "auto")
    server, colon, client = choice.partition(":")
    if not colon:
        raise BenchError(f"--pin takes auto, none or SERVER:CLIENT such as 0:1, not {choice!r}")
    return Cores(_parse_cores(server, usable), _parse_cores(client, usable), "--pin")


def _parse_cores(text: str, usable: frozenset[int]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not low.isdigit() or (high and not high.isdigit()):
            raise BenchError(f"--pin: {text!r} is not a list of cores such as 0-3,6")
        found.update(range(int(low), int(high or low) + 1))
    if not found <= usable:
        raise BenchError(f"--pin: core {min(found - usable)} is not usable; there are {_ranges(usable)}")
    return frozenset(found)


def _ranges(cores: frozenset[int]) -> str:
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def has_gpu() -> bool:
    """Whether an NVIDIA device is there, asked without loading torch."""
    return Path("/dev/nvidiactl").exists()


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
