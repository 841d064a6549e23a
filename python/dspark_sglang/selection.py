"""Which worker runs under the algorithm name DSPARK."""

from __future__ import annotations

import os

from sgl_dspark.errors import ConfigError

ALGORITHM = "DSPARK"
WORKER_VARIABLE = "SGL_DSPARK_WORKER"
OURS, BRIDGE, UPSTREAM = "ours", "bridge", "upstream"
CHOICES = (OURS, BRIDGE, UPSTREAM)


def worker_choice() -> str:
    """Return ``ours``, ``bridge`` (SGLang's worker, planned by us) or ``upstream`` from ``SGL_DSPARK_WORKER``.

    Raises
    ------
    ConfigError
        If the variable holds anything else; unset and empty mean ours.
    """
    choice = os.environ.get(WORKER_VARIABLE, "").strip().lower() or OURS
    if choice not in CHOICES:
        names = ", ".join(f"'{name}'" for name in CHOICES[:-1])
        raise ConfigError(f"{WORKER_VARIABLE} must be {names} or '{CHOICES[-1]}', not '{choice}'")
    return choice


def worker_class(algorithm: str) -> type | None:
    """Return our worker class for ``algorithm``, or None to leave SGLang's own in place."""
    if algorithm.upper() != ALGORITHM or worker_choice() == UPSTREAM:
        return None
    if worker_choice() == BRIDGE:
        from dspark_sglang.bridge.seam import check_seam

        # Before the module that derives from SGLang's worker, which may not even import if that has moved.
        check_seam()
        from dspark_sglang.bridge.worker import BridgeWorker

        return BridgeWorker
    from dspark_sglang.worker import DsparkWorker

    return DsparkWorker


def serves_ours() -> bool:
    """Whether this process belongs to a server that runs our worker."""
    return _serves_dspark() and worker_choice() == OURS


def serves_planned() -> bool:
    """Whether this process belongs to a server whose DSPARK worker is ours or planned by us."""
    return _serves_dspark() and worker_choice() != UPSTREAM


def _serves_dspark() -> bool:
    from sglang.srt.runtime_context import get_spec

    name = get_spec().speculative_algorithm
    return name is not None and name.upper() == ALGORITHM
