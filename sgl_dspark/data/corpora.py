"""Prompts from texts that installed packages carry: short questions, programming problems, library functions."""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
from importlib import resources
from types import ModuleType

from sgl_dspark.data.lines import numbered
from sgl_dspark.data.split import Drawn

QUESTION_TOPICS = (
    "ai", "coding", "computers", "food", "health", "history", "literature", "money", "movies", "politics",
    "psychology", "science", "sports", "tech_support", "trivia",
)  # fmt: skip
# Modules with documented pure-Python functions that import without side effects.
_MODULES = (
    "argparse", "ast", "base64", "bisect", "calendar", "cmd", "codecs", "collections", "colorsys", "configparser",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "dis", "email.utils", "enum",
    "filecmp", "fileinput", "fnmatch", "fractions", "functools", "getopt", "gettext", "glob", "graphlib", "gzip",
    "hashlib", "heapq", "hmac", "html", "imghdr", "inspect", "ipaddress", "json", "keyword", "linecache", "locale",
    "logging", "mailbox", "math", "mimetypes", "ntpath", "numbers", "operator", "optparse", "os", "pathlib", "pickle",
    "pickletools", "pkgutil", "platform", "plistlib", "pprint", "posixpath", "queue", "quopri", "random", "re",
    "reprlib", "sched", "secrets", "shelve", "shlex", "shutil", "socket", "sqlite3", "ssl", "stat", "statistics",
    "string", "stringprep", "struct", "subprocess", "symtable", "sysconfig", "tarfile", "tempfile", "textwrap",
    "threading", "timeit", "token", "tokenize", "trace", "traceback", "types", "typing", "unittest", "unittest.mock",
    "urllib.parse", "urllib.request", "uuid", "warnings", "wave", "weakref", "xml.sax.saxutils", "zipapp", "zipfile",
)  # fmt: skip
_LONGEST_DOC = 400
_LONGEST_PROBLEM = 420
_PROBLEM_FORMS = (
    "Write a Python function that solves this problem: {task}",
    "{task}\nWrite a Python program that computes it and explain your approach.",
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n"
    '{signature}\n    """{task}"""\n```',
    "{task}",
)


def corpus_questions() -> list[Drawn]:
    """List the opening lines of the chatterbot conversations."""
    import yaml

    found: set[str] = set()
    folder = resources.files("chatterbot_corpus") / "data" / "english"
    for topic in QUESTION_TOPICS:
        text = (folder / f"{topic}.yml").read_text(encoding="utf-8")
        for dialogue in yaml.safe_load(text)["conversations"]:
            question = str(dialogue[0]).strip()
            if len(question) > 8:
                found.add(question)
    return [Drawn(question, question) for question in sorted(found)]


def problem_prompts() -> list[Drawn]:
    """Word the CodeI/O task descriptions that reasoning-gym carries as requests, in one of four forms by position."""
    found: set[tuple[str, str]] = set()
    for name in ("codeio.jsonl.gz", "codeio-hq.jsonl.gz"):
        text = gzip.decompress((resources.files("reasoning_gym") / "data" / name).read_bytes()).decode()
        # One of the two is a JSON array, the other JSON lines.
        records = json.loads(text) if text.startswith("[") else [json.loads(line) for _, line in numbered(text)]
        for record in records:
            task = " ".join(str(record["task_description"]).split())
            if len(task) <= _LONGEST_PROBLEM and "main_solution" not in task:
                found.add((task, _signature(str(record["code_sample"]))))
    return [
        Drawn(_PROBLEM_FORMS[index % len(_PROBLEM_FORMS)].format(task=task, signature=signature), task)
        for index, (task, signature) in enumerate(sorted(found))
    ]


def _signature(code: str) -> str:
    lines = [line.strip() for line in code.splitlines() if line.startswith("def main_solution(")]
    return lines[0].replace("main_solution", "solve") if lines else "def solve():"


def library_prompts() -> list[Drawn]:
    """Ask for documented functions of the standard library, by signature and docstring.

    The list depends on the Python release, as the library does.
    """
    found: set[Drawn] = set()
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            # Some modules are left out of some releases and builds.
            continue
        for title, function in inspect.getmembers(module, inspect.isroutine):
            found.update(_library_prompt(module, title, function))
    return sorted(found)


def _library_prompt(module: ModuleType, title: str, function: object) -> list[Drawn]:
    if title.startswith("_") or getattr(function, "__module__", None) != module.__name__:
        return []
    text = inspect.getdoc(function) or ""
    try:
        signature = str(inspect.signature(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    if len(text) < 20 or len(text) > _LONGEST_DOC or " at 0x" in signature or "<" in signature:
        return []
    body = text.replace("\n", "\n    ")
    header = f'def {title}{signature}:\n    """{body}"""'
    first = text.split("\n\n")[0].replace("\n", " ")
    # Both forms show the docstring, which several functions may share.
    return [
        Drawn(text, first)
        for text in (
            f"Complete this Python function:\n```python\n{header}\n```",
            f"How do I use {module.__name__}.{title} in Python? Its documentation says: {first}",
        )
    ]
