"""How many threads the model gets on a CPU."""

from __future__ import annotations

import os


def default_threads() -> int:
    """Return all usable cores but one, at least one.

    The remaining core serves HTTP and tokenisation; a model thread that shares its
    core with them makes every small operation wait for it.
    """
    return max(1, len(os.sched_getaffinity(0)) - 1)
