"""The machine and the software of this client, as a report names them."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any


def describe_client() -> dict[str, Any]:
    """Return processor, cores, load, versions and, in a checkout, the commit."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
    }
    with contextlib.suppress(OSError):
        found["load_average"] = [round(value, 2) for value in os.getloadavg()]
    for name in ("sgl-dspark", "aiohttp", "uvloop"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    commit = _commit()
    if commit:
        found["commit"] = commit
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        reply = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
        return reply.stdout.strip() or None
    return None
