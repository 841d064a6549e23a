"""``dspark bench``: the same prompts against servers with and without DSpark, in alternation.

Read ``metrics.py`` first: it defines every figure. ``session.py`` runs the arms, `sgl_dspark.server_process` starts and
ends their servers, ``client.py`` sends requests and takes the times, ``report.py`` turns records into tables and JSON.
"""

from __future__ import annotations

from sgl_dspark.errors import DsparkError


class BenchError(DsparkError):
    """A benchmark cannot run or one of its requests failed; what was measured before stays valid."""
