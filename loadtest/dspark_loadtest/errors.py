"""What an operator can fix about a load test."""

from __future__ import annotations

from sgl_dspark.errors import DsparkError


class LoadtestError(DsparkError):
    """A load test cannot run as asked; what was measured before stays valid."""


class TraceError(LoadtestError):
    """A trace file cannot be read; names the file, the line and the field."""
