"""Environment variables that switch a part off."""

from __future__ import annotations

import os

from sgl_dspark.errors import ConfigError

# A second copy of the weights in oneDNN's layout (`packed_weights`), and attention in vector code (`attention.kernel`).
PACKED_WEIGHTS = "SGL_DSPARK_PACK_WEIGHTS"
ATTENTION_KERNEL = "SGL_DSPARK_ATTENTION_KERNEL"


def switched_on(variable: str) -> bool:
    """Return whether a variable is 1, as it is when unset or empty, and not 0.

    Raises
    ------
    ConfigError
        If it holds anything else.
    """
    text = os.environ.get(variable, "").strip() or "1"
    if text not in ("0", "1"):
        raise ConfigError(f"{variable} must be 0 or 1, not '{text}'")
    return text == "1"
