"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples in every run of CI: a failure there is the change's, and not the day's.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
