"""``training.json`` beside a draft: for which target it was made, and how. Ignored by engines that do not know it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE_NAME = "training.json"


def write_provenance(folder: Path, made: dict[str, Any]) -> None:
    """Write what made the draft in ``folder``; ``target_sha256`` in it is what `other_target` compares."""
    (folder / FILE_NAME).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read it; empty where there is none, as beside drafts of other trainers."""
    try:
        found = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # It only serves to warn: a draft without it, or with a damaged one, works all the same.
        return {}
    return found if isinstance(found, dict) else {}


def other_target(folder: Path, target_sha256: str) -> str | None:
    """Return the name of the target that a draft was made for, if it is known and another one."""
    made = read_provenance(folder)
    known = made.get("target_sha256")
    if known is None or known == target_sha256:
        return None
    return str(made.get("target", "another target"))
