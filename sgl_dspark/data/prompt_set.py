"""Sets of conversations to be measured with: built in or from a file, in a seeded order; never trained on."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sgl_dspark.data.lines import HALF_CHARACTER, is_text, numbered
from sgl_dspark.errors import DataError

BUILT_IN = "prompt_set.jsonl"


@dataclass(frozen=True)
class Prompt:
    """A conversation to answer: its category and its messages in OpenAI's form."""

    category: str
    messages: tuple[dict[str, str], ...]


def load_prompts(path: Path | None, categories: Sequence[str] = ()) -> list[Prompt]:
    """Read prompts.

    Parameters
    ----------
    path : Path or None
        JSON lines, each with ``prompt`` (text), ``turns`` (texts; the first is sent, as the paper does) or
        ``messages``, and optionally ``category``; by default the file's name. None: the built-in set.
    categories : sequence of str
        Keep only these; all if empty.

    Raises
    ------
    DataError
        If the file cannot be read, a line holds no prompt, or nothing is left.
    """
    source = path or resources.files(__package__) / BUILT_IN
    name = str(path) if path else "the built-in prompts"
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {name}: {error}") from error
    fallback = path.stem if path else "prompts"
    prompts = [_parse(line, f"{name}, line {i}", fallback) for i, line in numbered(text)]
    known = sorted({p.category for p in prompts})
    for category in categories:
        if category not in known:
            raise DataError(f"no category {category!r} in {name}; there are: {', '.join(known) or 'none'}")
    kept = [p for p in prompts if not categories or p.category in categories]
    if not kept:
        raise DataError(f"{name} holds no prompt")
    return kept


def _parse(line: str, where: str, fallback: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error}") from error
    messages = _messages(record) if isinstance(record, dict) else None
    if not messages:
        raise DataError(f'{where} holds none of "prompt", "turns" or "messages" with text in it')
    if not all(is_text(m["content"]) for m in messages if isinstance(m.get("content"), str)):
        raise DataError(f"{where}: the prompt {HALF_CHARACTER}; mend the text or leave the line out")
    return Prompt(str(record.get("category") or record.get("kind") or fallback), messages)


def _messages(record: dict[str, Any]) -> tuple[dict[str, str], ...] | None:
    messages = record.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(m, dict) and "role" in m for m in messages):
        return tuple(messages)
    turns = record.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else record.get("prompt")
    return ({"role": "user", "content": text},) if isinstance(text, str) and text.strip() else None


def order_prompts(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Shuffle by ``seed``, then take the categories in turn, so that every beginning of the list is a fair mix."""
    rng = random.Random(seed)
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    for group in groups.values():
        rng.shuffle(group)
    names = sorted(groups)
    longest = max((len(group) for group in groups.values()), default=0)
    return [groups[name][i] for i in range(longest) for name in names if i < len(groups[name])]


def take(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Return the first ``count`` prompts, from the beginning again if there are fewer."""
    return [prompts[i % len(prompts)] for i in range(count)]


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of the messages in order; equal exactly when the same text is sent in the same order."""
    text = json.dumps([p.messages for p in prompts], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
