"""What a check has found, as `dspark doctor` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Outcome of one check; only ``MISSING`` makes the command fail."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what was found, and how to mend it."""

    state: State
    subject: str
    detail: str
    remedy: str = ""
