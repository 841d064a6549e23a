"""Read a Dockerfile into stages and instructions, as far as this repository's own uses the language."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL"}
KNOWN |= {"USER", "VOLUME", "WORKDIR"}
VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


@dataclass
class Stage:
    """One ``FROM`` and what follows.

    Attributes
    ----------
    name : str
        After ``AS``.
    base : str
        Name of an earlier stage, or an image.
    steps : list of (str, str)
        Keyword and the rest of each instruction, lines joined.
    """

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def read(path: Path) -> dict[str, Stage]:
    """Return the stages by name.

    Raises
    ------
    ValueError
        At an instruction that is not known, or a stage without a name.
    """
    stages: dict[str, Stage] = {}
    defaults: dict[str, str] = {}
    stage: Stage | None = None
    for keyword, rest in instructions(path.read_text()):
        if keyword not in KNOWN:
            raise ValueError(f"{path}: the instruction {keyword} is not known here")
        if keyword == "FROM":
            base, _, name = expand(rest, defaults).partition(" AS ")
            if not name:
                raise ValueError(f"{path}: FROM {rest} has no name")
            stage = stages[name] = Stage(name, base)
        elif stage is None:
            name, _, value = rest.partition("=")
            defaults[name] = value
        else:
            stage.steps.append((keyword, rest))
    return stages


def instructions(text: str) -> list[tuple[str, str]]:
    """Split into keyword and the rest, with continued lines joined and comments left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in joined.splitlines()]


def expand(text: str, values: dict[str, str]) -> str:
    """Put values in the place of ``$NAME`` and ``${NAME}``; an unknown name is empty."""
    return VARIABLE.sub(lambda found: values.get(found[1] or found[2], ""), text)


def assignments(rest: str, values: dict[str, str]) -> dict[str, str]:
    """Read ``NAME=VALUE ...`` of ENV, quotes as a shell's."""
    pairs = (word.partition("=") for word in shlex.split(rest))
    return {name: expand(value, values) for name, _, value in pairs}


def command(rest: str) -> list[str]:
    """Read the list form of CMD, ENTRYPOINT and HEALTHCHECK."""
    words = json.loads(rest[rest.index("[") :])
    return [str(word) for word in words]
