"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

# The same examples in every run of CI: a failure there is the change's, and not the day's.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_finish() -> None:
    """Take the million objects of imported libraries out of what the garbage collector walks through.

    A full collection takes more than half a second there, for which a test's own clients stand still and their server
    does not: several percent of what a few waves of short streams take.
    """
    gc.collect()
    gc.freeze()
