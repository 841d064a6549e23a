"""What an operator can fix about a load test."""

from __future__ import annotations

from sgl_dspark.errors import DsparkError


class LoadtestError(DsparkError):
    """A load test cannot run as asked; what was measured before stays valid."""


class StatusError(LoadtestError):
    """A server answered a request with an error status.

    Attributes
    ----------
    status : int
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class TraceError(LoadtestError):
    """A trace file cannot be read; names the file, the line and the field."""
