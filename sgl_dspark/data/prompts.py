"""Prompt files: JSON lines of user turns, each prompt known by the hash of its text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_dspark.data.lines import HALF_CHARACTER, is_text, numbered, to_line
from sgl_dspark.errors import DataError


@dataclass(frozen=True)
class PromptRecord:
    """One conversation to be had.

    Attributes
    ----------
    id : str
        First 16 hex digits of the SHA-256 of the turns; equal exactly for equal text.
    turns : tuple of str
        User turns, in order; not empty.
    kind : str
        Label carried through to statistics.
    """

    id: str
    turns: tuple[str, ...]
    kind: str = ""

    @classmethod
    def of(cls, turns: Iterable[str], kind: str = "") -> PromptRecord:
        """Build a record, its id from its turns."""
        texts = tuple(turns)
        digest = hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
        return cls(digest[:16], texts, kind)

    def to_json(self) -> str:
        """Return one line of a prompt file, its newline included."""
        return to_line({"id": self.id, "kind": self.kind, "turns": list(self.turns)})


def read_prompts(path: Path, limit: int | None = None) -> list[PromptRecord]:
    """Read a prompt file; repeated prompts are kept once.

    Parameters
    ----------
    path : Path
        JSON lines with ``turns`` (texts), or ``prompt`` (one text), and optionally ``kind`` or ``category``, which
        default to the file's name.
    limit : int, optional
        Stop after so many distinct prompts.

    Raises
    ------
    DataError
        If the file cannot be read or is empty, or a line is malformed; names the line and the field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read prompts from {path}: {error}; `dspark data prompts` makes some.") from error
    found: dict[str, PromptRecord] = {}
    for number, line in numbered(text):
        record = _parse(line, f"{path} line {number}", path.stem)
        found.setdefault(record.id, record)
        if limit is not None and len(found) == limit:
            break
    if not found:
        raise DataError(f"{path} holds no prompt.")
    return list(found.values())


def write_prompts(path: Path, records: Iterable[PromptRecord]) -> int:
    """Write a prompt file at once, so that a reader never sees half of it; return how many it holds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as sink:
        for record in records:
            sink.write(record.to_json())
            count += 1
    partial.replace(path)
    return count


def _parse(line: str, where: str, fallback: str) -> PromptRecord:
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise DataError(f"{where} is not a JSON object.")
    turns = _turns(raw)
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise DataError(f"{where}: turns must be a list of one or more non-empty texts.")
    if not all(map(is_text, turns)):
        raise DataError(f"{where}: turns {HALF_CHARACTER}; mend the text or leave the line out.")
    return PromptRecord.of(turns, str(raw.get("kind") or raw.get("category") or fallback))


def _turns(raw: dict[str, Any]) -> list[Any]:
    turns = raw.get("turns")
    if turns is None and "prompt" in raw:
        turns = [raw["prompt"]]
    return turns if isinstance(turns, list) else []
