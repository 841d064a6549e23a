"""Outside suites against a running server: how each is run, what came out, and which failures are known."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import pair
from tests.support.programs import missing
from tests.support.server import ROOT, ServerProcess, server_environment
from tools import get_suites

SUITES = ROOT / "tests" / "suites"
# What comes with the environment, and what tools/get_suites.py fetches.
INSTALLED, FETCHED = ("kits", "llm_comply"), ("openai", "langchain", "npm")
NAMES = INSTALLED + FETCHED
# A suite that no longer runs its tests must not pass for one that has nothing to say.
LEAST_PASSED = {"kits": 40, "llm_comply": 5, "openai": 60, "langchain": 36, "npm": 13}
SUITE_S = 400
CONTEXT = 2048
# A toy that never saw JSON closes no string and ends no list by itself; 3 is the number that LangChain's tests ask for.
CLOSING = {'"': 40.0, "}": 34.0, "]": 32.0, ",": 20.0, ":": 20.0, "<|im_end|>": 40.0, "3": 6.0}
OPENAI_TESTS = ("chat", "test_completions.py", "test_models.py")
FILES = {"kits": ("sglang_kits.py",), "langchain": ("langchain_chat.py",)}
# Left out unless a run is to be whole: what takes long and says little more. OpenAI's loose tests are the strict ones
# without the validation of answers.
LONG = {"kits": "not test_logprob_mixed", "langchain": "", "openai": "not loose"}


class Outcome(NamedTuple):
    """What became of one test."""

    status: str
    """``passed``, ``failed`` or ``skipped``."""
    message: str
    """Why it did not pass."""


class Known(NamedTuple):
    """Tests of which it is known that, and why, they do not pass."""

    tests: tuple[str, ...]
    """Patterns (``*``, ``?``) over names of tests."""
    message: str
    """A part of what each of them says."""
    cause: str
    status: str = "failed"
    only_plain: bool = False
    """Whether they pass with DSPARK."""


def known(name: str, *, plain: bool = False) -> list[Known]:
    """Read what is known of a suite, with DSPARK or for the target alone, from ``expected.toml``."""
    entries = tomllib.loads((SUITES / "expected.toml").read_text()).get(name, [])
    return [
        Known(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries if plain or not entry.get("only_plain")
    ]


def require() -> Path:
    """Find the fetched suites; without them skip, except in CI, which must have them."""
    folder = get_suites.suites_folder()
    if get_suites.is_complete(folder) and get_suites.node_folder(folder) is not None:
        return folder
    message = f"the outside suites are not in {folder}; python tools/get_suites.py fetches them"
    missing(message, "CI_SUITES")


def suites_server(log_path: Path, *, plain: bool = False, **environment: str) -> ServerProcess:
    """Give a server for the suites: it takes every model name, and its context has room for what they ask."""
    flags = ["--model-path", str(pair.TARGET), "--dtype", "float32", "--context-length", str(CONTEXT)]
    flags += ["--chunked-prefill-size", "128", "--max-total-tokens", "16384", "--sleep-on-idle", "--any-model"]
    # Where a grammar allows any white space, or a tool any arguments, the toy writes nothing else.
    flags += ["--constrained-json-disable-any-whitespace", "--tool-call-parser", "qwen25"]
    draft = ["--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]
    environment.setdefault("SGLANG_TOOL_STRICT_LEVEL", "2")
    return ServerProcess(["--plain", *flags] if plain else [*flags, *draft], log_path, **environment)


def run_suite(name: str, server: ServerProcess, work: Path, *, whole: bool = False) -> dict[str, Outcome]:
    """Run one of `NAMES` against a server.

    Parameters
    ----------
    name : str
    server : ServerProcess
        Runs; one of `suites_server`.
    work : Path
        An empty folder for what the suite leaves.
    whole : bool
        With what `LONG` leaves out.

    Returns
    -------
    dict of str to Outcome
        By name of the test.

    Raises
    ------
    RuntimeError
        If it wrote no report, with the end of its output.
    """
    report = work / "report"
    command, folder = _command(name, report, work, server.url, whole)
    done = subprocess.run(
        command, cwd=folder, env=_environment(server), capture_output=True, text=True, timeout=SUITE_S, check=False
    )
    if name == "llm_comply":
        report.write_text(done.stdout)
    try:
        return read_comply(report) if name == "llm_comply" else read_junit(report)
    except (FileNotFoundError, ValueError, ElementTree.ParseError) as error:
        raise RuntimeError(f"{name} left no report:\n{(done.stdout + done.stderr)[-4000:]}") from error


def _command(name: str, report: Path, work: Path, url: str, whole: bool) -> tuple[list[str], Path]:
    """Give the command of a suite, and the folder to run it in."""
    if name == "llm_comply":
        code = "import sys; from llm_comply.cli import main; sys.exit(main())"
        options = ["--format", "openai-chat", "--model", "default", "--json", "--timeout", str(SUITE_S // 2)]
        return [sys.executable, "-c", code, *options, "--base-url", f"{url}/v1", "--api-key", "x"], work
    if name == "npm":
        fetched = require()
        node = get_suites.node_folder(fetched)
        # Node looks for packages beside the file.
        (work / "node_modules").symlink_to(fetched / "npm" / "node_modules")
        test = shutil.copy(SUITES / "npm" / "clients.test.mjs", work)
        return [f"{node}/node", "--test", "--test-reporter=junit", f"--test-reporter-destination={report}", test], work
    folder, choice = work, "" if whole else LONG[name]
    paths = [str(SUITES / file) for file in FILES.get(name, ())]
    if name == "openai":
        folder = require() / "openai"
        paths = [f"tests/api_resources/{path}" for path in OPENAI_TESTS]
    python = sys.executable if name in INSTALLED else str(require() / "venv" / "bin" / "python")
    settings = ["-q", "-c", str(SUITES / "pytest.ini"), "--rootdir", str(folder), f"--junitxml={report}"]
    return [python, "-m", "pytest", *settings, "-k", choice, *paths], folder


def _environment(server: ServerProcess) -> dict[str, str]:
    base = f"{server.url}/v1"
    return server_environment(
        TEST_API_BASE_URL=base,
        SUITE_BASE_URL=base,
        SUITE_SERVER_URL=server.url,
        SUITE_SERVER_PID=str(server.process.pid),
        SUITE_LOGIT_BIAS=json.dumps(closing_bias()),
        # A cached archive of bytecode would be written into the folder that everyone shares.
        PYTHONDONTWRITEBYTECODE="1",
    )


def closing_bias() -> dict[str, float]:
    """Give `CLOSING` by token id."""
    vocabulary = json.loads((pair.TARGET / "tokenizer.json").read_text())["model"]["vocab"]
    return {str(vocabulary[text]): bias for text, bias in CLOSING.items()}


def read_junit(report: Path) -> dict[str, Outcome]:
    """Read a report in JUnit's format, as pytest and Node.js write it."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        place = (case.get("classname") or "").removeprefix("tests.api_resources.").strip(".")
        bad = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        name = case.get("name") if place in ("", "test") else f"{place}::{case.get('name')}"
        if bad is None:
            found[str(name)] = Outcome("passed", "")
        else:
            message = f"{bad.get('message') or ''}\n{bad.text or ''}".strip()
            found[str(name)] = Outcome("skipped" if bad.tag == "skipped" else "failed", message)
    if not found:
        raise ValueError(f"{report} has no tests")
    return found


def read_comply(report: Path) -> dict[str, Outcome]:
    """Read the JSON of llm-comply."""
    results: list[dict[str, Any]] = json.loads(report.read_text())["results"]
    return {one["id"]: Outcome(one["status"], str(one.get("errors") or "")) for one in results}


def surprises(outcomes: Mapping[str, Outcome], expected: Sequence[Known]) -> Iterator[str]:
    """Yield a line for every test that came out otherwise than known, and for every known one that there is not."""
    for name, outcome in outcomes.items():
        entry, said = entry_of(name, expected), outcome.message[:600]
        if entry is None:
            if outcome.status != "passed":
                yield f"{name}: {outcome.status}, which is not listed: {said}"
        elif outcome.status != entry.status:
            yield f"{name}: {outcome.status}, and is listed as {entry.status} ({entry.cause}) {said}"
        elif entry.message not in outcome.message:
            yield f"{name}: {outcome.status} for another reason than listed ({entry.message!r}): {said}"
    for entry in expected:
        for pattern in entry.tests:
            if not any(fnmatchcase(name, pattern) for name in outcomes):
                yield f"{pattern}: listed, but there is no such test"


def entry_of(name: str, expected: Sequence[Known]) -> Known | None:
    """Find the entry of a test; the first that matches."""
    return next((e for e in expected if any(fnmatchcase(name, pattern) for pattern in e.tests)), None)
