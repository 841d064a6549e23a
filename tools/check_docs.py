"""Check the documentation against the repository: every path, make target and dspark command it names exists."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from check_files import ROOT, project_files

CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[\w.*/-]+")
MAKE = re.compile(r"(?:^|[\s&;|])make ((?:[\w-]+ ?)+)")
ASSIGNMENT = re.compile(r"\b[A-Z_]+=(?:\"[^\"]*\"|\S*)\s*")
DSPARK = re.compile(r"(?:^|[\s&;|/])dspark ([a-z][\w-]*)")
BARE_FILE = re.compile(r"^\.?[\w-]+\.(?:py|md|toml|txt|yaml|yml|sh)$|^(?:Makefile|LICENSE|Dockerfile)$")
# Folders of the repository: what starts with one of these is a path in it, present or not.
FOLDERS = {".ci", "checkpoints", "deploy", "docs", "grafana", "loadtest", "python", "sgl_dspark", "tests", "tools"}

# A change log also names what is gone.
HISTORY = {"CHANGELOG.md"}


def main() -> int:
    """Print every name that stands for nothing; 1 if there is one."""
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["sgl_dspark.commands"]
    )
    problems = [
        f"{name}:{number}: {problem}"
        for name in project_files(ROOT)
        if name.endswith(".md") and name not in HISTORY
        for number, problem in check_text((ROOT / name).read_text(), ROOT, (ROOT / name).parent, targets, commands)
    ]
    for problem in problems:
        print(problem)
    return int(bool(problems))


def check_text(text: str, root: Path, folder: Path, targets: set[str], commands: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line number and sentence for each path, target or command that does not exist.

    Parameters
    ----------
    text : str
        A Markdown file.
    root, folder : Path
        The repository, and the folder of the file, which links are relative to.
    targets, commands : set of str
        Names that may follow ``make`` and ``dspark``.
    """
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        for link in LINK.findall("" if fenced else line):
            path = link.partition("#")[0]
            if path and ":" not in path and not (folder / path).exists():
                yield number, f"the link {link} leads nowhere."
        for code in [line.partition(" #")[0]] if fenced else CODE_SPAN.findall(line):
            yield from ((number, problem) for problem in check_code(code, root, targets, commands))


def check_code(code: str, root: Path, targets: set[str], commands: set[str]) -> Iterator[str]:
    """Yield a sentence for each name in a piece of code that does not exist."""
    for word in PATH.findall(code):
        path = word.rstrip(".")
        # A bare file name may stand for a file in any folder; a path starts at the root.
        if "/" in path and path.split("/", 1)[0] in FOLDERS:
            pattern = path
        elif BARE_FILE.match(path):
            pattern = f"*/**/{path}" if not (root / path).exists() else path
        else:
            continue
        if not any(root.glob(pattern)):
            yield f"the path {path} does not exist."
    for words in MAKE.findall(ASSIGNMENT.sub("", code)):
        for target in words.split():
            if target not in targets:
                yield f"`make {target}` is no target of the Makefile."
    for command in DSPARK.findall(code):
        if command not in commands:
            yield f"`dspark {command}` is no command."


if __name__ == "__main__":
    sys.exit(main())
