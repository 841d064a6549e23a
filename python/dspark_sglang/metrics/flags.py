"""What ``dspark serve`` adds to SGLang's flags for the metrics, and the anchors of service."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dspark_sglang.metrics.definitions import DEFAULT_SLA
from sgl_dspark.errors import ConfigError

SLA_VARIABLE = "SGL_DSPARK_SLA"
MOST_ANCHORS = 16

# Seconds. SGLang's own edges between 80 and 225 tok/s/user (12.5 to 4.4 ms) are three, and none is below 100 ms for a
# first token; these hold every default anchor.
SGLANG_EDGES: dict[str, tuple[float, ...]] = {
    "--bucket-time-to-first-token": (
        *(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8),
        *(1, 1.5, 2, 3, 4, 6, 8, 10, 20, 40, 60, 120),
    ),
    "--bucket-inter-token-latency": (
        *(0.001, 0.002, 0.003, 0.004, 0.0045, 0.005, 0.0055, 0.006, 0.007, 0.008, 0.008333, 0.009, 0.01, 0.011),
        *(0.0125, 0.014, 0.016, 0.018, 0.02, 0.025, 0.028571, 0.033, 0.04, 0.05, 0.065, 0.08, 0.1, 0.15, 0.2, 0.3),
        *(0.5, 1, 2, 5),
    ),
    "--bucket-e2e-request-latency": (
        *(0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 240, 480, 1200),
    ),
}


def metric_flags(arguments: Sequence[str]) -> list[str]:
    """Return what switches SGLang's metrics on with edges that tell 80 from 225 tok/s/user.

    Parameters
    ----------
    arguments : sequence of str
        The user's; a flag that is there already is left alone.
    """
    given = {argument.partition("=")[0] for argument in arguments}
    added = [] if "--enable-metrics" in given else ["--enable-metrics"]
    for flag, edges in SGLANG_EDGES.items():
        if flag not in given:
            added += [flag, *(f"{edge:g}" for edge in edges)]
    return added


def read_sla(text: str, name: str) -> tuple[float, ...]:
    """Read anchors such as ``20,35,50``; the default where the text is empty.

    Raises
    ------
    ConfigError
        If it is not a list of up to 16 positive numbers; names ``name``.
    """
    if not text.strip():
        return DEFAULT_SLA
    try:
        anchors = sorted({float(part) for part in text.split(",")})
    except ValueError:
        anchors = []
    if not 0 < len(anchors) <= MOST_ANCHORS or not 0 < anchors[0] <= anchors[-1] < float("inf"):
        raise ConfigError(f"{name} must be up to {MOST_ANCHORS} positive numbers, such as 20,35,50, not {text!r}")
    return tuple(anchors)


def sla_from_environment() -> tuple[float, ...]:
    """Read ``SGL_DSPARK_SLA``."""
    return read_sla(os.environ.get(SLA_VARIABLE, ""), SLA_VARIABLE)


def set_sla(text: str | None) -> None:
    """Check ``--sla`` and hand it to the worker process, which reads it from the environment."""
    if text is not None:
        read_sla(text, "--sla")
        os.environ[SLA_VARIABLE] = text
    sla_from_environment()
