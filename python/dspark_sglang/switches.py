"""Environment variables that switch a part off, or let a test into a worker."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from sgl_dspark.errors import ConfigError

# A second copy of the weights in oneDNN's layout (`packed_weights`), and attention in vector code (`attention.kernel`).
PACKED_WEIGHTS = "SGL_DSPARK_PACK_WEIGHTS"
ATTENTION_KERNEL = "SGL_DSPARK_ATTENTION_KERNEL"
# Triton kernels for the small operations of a round on a CUDA device (`kernels`); torch's own operations without.
TRITON_KERNELS = "SGL_DSPARK_TRITON"
# What a test has called with the worker, as "module:function"; for fault injection, never for serving.
TEST_HOOK = "SGL_DSPARK_TEST_HOOK"

logger = logging.getLogger(__name__)


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


def run_test_hook(worker: Any) -> None:
    """Call what ``SGL_DSPARK_TEST_HOOK`` names with a worker that is about to serve; nothing if it is unset.

    Raises
    ------
    ConfigError
        If it names nothing that can be called.
    """
    name = os.environ.get(TEST_HOOK, "").strip()
    if not name:
        return
    module, _, function = name.partition(":")
    try:
        hook = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{TEST_HOOK} must be module:function, not '{name}' ({error}); unset it to serve") from error
    logger.warning("%s is set to %s: this server is a test's", TEST_HOOK, name)
    hook(worker)
