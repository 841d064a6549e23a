"""Training and held-out halves: which of them a prompt belongs to is decided by its template, so they share none.

One task with other numbers, or other names, is the same task. A split by the text alone puts it into both halves, and
the draft is then measured on answers that it was trained on but for a few words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

SPLITS = ("train", "held-out")
HELD_OUT_PERCENT = 8
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
# Names, places, months; that the first word of a sentence goes with them only joins templates.
_NAME = re.compile(r"\b[A-Z][\w']*")
_LIST = re.compile(r"#(?:\s*,\s*#)+")


class Drawn(NamedTuple):
    """A prompt of a source.

    Attributes
    ----------
    text : str
    origin : str
        What its half is decided by: the text without how it is asked, where a source asks one thing in several ways.
    """

    text: str
    origin: str


Draw = Callable[[Random], Iterator[Drawn]]


def template_of(origin: str) -> str:
    """Return a text with its numbers, lists of numbers and capitalised words struck out."""
    return " ".join(_LIST.sub("#", _NUMBER.sub("#", _NAME.sub("@", origin))).split())


def split_of(origin: str) -> str:
    """Which half an origin belongs to, by a hash of its template."""
    bucket = int.from_bytes(hashlib.sha256(template_of(origin).encode()).digest()[:4], "big") % 100
    return "held-out" if bucket < HELD_OUT_PERCENT else "train"
