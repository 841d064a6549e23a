"""Check sizes: Python files and functions stay short, and nothing large enters the repository unannounced."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_FILE_BYTES = 500_000
# Folders that hold data on purpose, with the bytes that each may hold in all.
DATA_BUDGETS = {"checkpoints/": 28_000_000, "tests/golden/": 4_000_000, "tests/fixtures/": 8_000_000}


def main() -> int:
    """Print every violation; 1 if there is one."""
    problems = find_problems(ROOT, project_files(ROOT))
    for problem in problems:
        print(problem)
    return int(bool(problems))


def project_files(root: Path) -> list[str]:
    """Return the files that are committed or about to be, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in set(output.split("\0")) if name and (root / name).is_file())


def find_problems(root: Path, names: list[str]) -> list[str]:
    """Return one line per file or function over its limit."""
    problems: list[str] = []
    used = dict.fromkeys(DATA_BUDGETS, 0)
    for name in names:
        size = (root / name).stat().st_size
        folder = next((folder for folder in DATA_BUDGETS if name.startswith(folder)), None)
        if folder is not None:
            used[folder] += size
        elif size > MAX_FILE_BYTES:
            problems.append(f"{name}: {size} bytes; at most {MAX_FILE_BYTES} outside the data folders.")
        if name.endswith(".py"):
            problems += long_code(name, (root / name).read_text())
    for folder, total in used.items():
        if total > DATA_BUDGETS[folder]:
            problems.append(f"{folder}: {total} bytes in all; at most {DATA_BUDGETS[folder]}.")
    return problems


def long_code(name: str, source: str) -> list[str]:
    """Return one line for a file that is too long and one for each function that is (docstring not counted)."""
    problems = []
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        problems.append(f"{name}: {lines} lines; at most {MAX_FILE_LINES}.")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = function_lines(node)
            if length > MAX_FUNCTION_LINES:
                problems.append(f"{name}:{node.lineno}: {node.name} has {length} lines; at most {MAX_FUNCTION_LINES}.")
    return problems


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring: documentation is not what makes it long."""
    length = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        length -= first.end_lineno - first.lineno + 1
    return length


if __name__ == "__main__":
    sys.exit(main())
