"""JSON lines: what may stand in a text, and where a line ends.

A line ends at its newline and nowhere else. Readers that also end it where `str.splitlines` does (U+2028, U+0085, form
feed) cannot read back an answer in which such a character stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

HALF_CHARACTER = "holds half a character (a lone surrogate), which no tokenizer reads"


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not empty, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def to_line(value: Any) -> str:
    """Lay a value out as one line of ASCII, its newline included, so that every reader finds the same line."""
    return json.dumps(value) + "\n"


def is_text(text: str) -> bool:
    """Whether a string is text: JSON can escape one half of a surrogate pair, which stands for no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
