"""Which cores a server and its client run on while both are measured on one machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sgl_dspark.errors import ConfigError


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


def model_threads() -> int:
    """Threads of the model on a CPU, of a server that is started to be measured: OMP_NUM_THREADS, or one.

    Raises
    ------
    ConfigError
        If the variable is no positive number.
    """
    text = os.environ.get("OMP_NUM_THREADS", "1")
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"OMP_NUM_THREADS must be a positive number, not {text!r}")
    return int(text)


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
    ConfigError
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
        raise ConfigError(f"--pin takes auto, none or SERVER:CLIENT such as 0:1, not {choice!r}")
    return Cores(_parse_cores(server, usable), _parse_cores(client, usable), "--pin")


def _parse_cores(text: str, usable: frozenset[int]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not low.isdigit() or (high and not high.isdigit()):
            raise ConfigError(f"--pin: {text!r} is not a list of cores such as 0-3,6")
        found.update(range(int(low), int(high or low) + 1))
    if not found <= usable:
        raise ConfigError(f"--pin: core {min(found - usable)} is not usable; there are {_ranges(usable)}")
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
