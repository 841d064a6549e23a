"""Reads numbers out of the rows of a file that others wrote; every complaint names file, line and field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from dspark_loadtest.errors import TraceError

# No prompt is longer, and no service has run longer, than these; beyond them a unit has been mistaken.
MAX_TOKENS = 100_000_000
MAX_MS = 1e15


@dataclass(frozen=True)
class Row:
    """One line of a trace file, as names and values.

    Attributes
    ----------
    file : str
    line : int
        From 1.
    values : mapping of str to object
        Numbers or their text.
    """

    file: str
    line: int
    values: Mapping[str, Any]

    def refuse(self, field: str, why: str) -> NoReturn:
        """Raise `TraceError` for ``field``."""
        raise TraceError(f"{self.file}, line {self.line}, {field}: {why}")

    def number(self, field: str, *, low: float = 0.0, high: float = MAX_MS) -> float:
        """Return a finite number within bounds."""
        value = self._get(field)
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            self.refuse(field, f"{shown(value)} is not a number")
        if not math.isfinite(found) or not low <= found <= high:
            self.refuse(field, f"{shown(value)} is not between {low:g} and {high:g}")
        return found

    def whole(self, field: str, *, low: int = 0, high: int = MAX_TOKENS) -> int:
        """Return a whole number within bounds; 12.0 counts as one."""
        found = self.number(field, low=low, high=high)
        if found != int(found):
            self.refuse(field, f"{shown(self.values[field])} is not a whole number")
        return int(found)

    def text(self, field: str) -> str:
        """Return a text or a whole number as text; not empty."""
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            self.refuse(field, f"{shown(value)} is not a text")
        return shown(value, quote=False) if isinstance(value, int) else value

    def wholes(self, field: str) -> tuple[int, ...]:
        """Return a list of whole numbers of at least 0."""
        value = self._get(field)
        if not isinstance(value, list):
            self.refuse(field, f"{shown(value)} is not a list")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                self.refuse(field, f"{shown(item)} is not a whole number of at least 0")
        return tuple(value)

    def _get(self, field: str) -> Any:
        if field not in self.values or self.values[field] is None:
            self.refuse(field, "is missing")
        value = self.values[field]
        if isinstance(value, bool):
            self.refuse(field, f"{value} is not a number or a text")
        return value


def shown(value: object, *, quote: bool = True) -> str:
    """Show a value that may be of any size in a message."""
    try:
        text = repr(value) if quote else str(value)
    except ValueError:
        # An integer of more digits than Python prints.
        return "a number of very many digits"
    return text if len(text) <= 60 else text[:57] + "..."
