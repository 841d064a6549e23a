"""Which worker runs under the algorithm name DSPARK."""

from __future__ import annotations

import os

from sgl_dspark.errors import ConfigError

ALGORITHM = "DSPARK"
WORKER_VARIABLE = "SGL_DSPARK_WORKER"
OURS, UPSTREAM = "ours", "upstream"


def worker_choice() -> str:
    """Return ``ours`` or ``upstream`` from ``SGL_DSPARK_WORKER``.

    Raises
    ------
    ConfigError
        If the variable holds anything else; unset and empty mean ours.
    """
    choice = os.environ.get(WORKER_VARIABLE, "").strip().lower() or OURS
    if choice not in (OURS, UPSTREAM):
        raise ConfigError(f"{WORKER_VARIABLE} must be '{OURS}' or '{UPSTREAM}', not '{choice}'")
    return choice


def worker_class(algorithm: str) -> type | None:
    """Return our worker class for ``algorithm``, or None to leave SGLang's own in place."""
    if algorithm.upper() != ALGORITHM or worker_choice() == UPSTREAM:
        return None
    from dspark_sglang.worker import DsparkWorker

    return DsparkWorker


def serves_ours() -> bool:
    """Whether this process belongs to a server that runs our worker."""
    from sglang.srt.runtime_context import get_spec

    name = get_spec().speculative_algorithm
    return name is not None and name.upper() == ALGORITHM and worker_choice() == OURS
