"""The programs that check deploy/, the chart rendered, and one way to run either."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from tests.support import programs
from tests.support.server import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "sgl-dspark"
VALUES = [*sorted(CHART.glob("values-*.yaml")), CHART / "ci" / "everything-values.yaml"]


def require(program: str) -> str:
    """Find a program of those that check ``deploy/``."""
    remedy = "PATH=$(tools/get_deploy_tools.sh):$PATH fetches it"
    return programs.require(program, remedy, "CI_DEPLOY_TOOLS")


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, found by `require`, and return status and output."""
    words = [require(str(command[0])), *map(str, command[1:])]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, **options)


def chart(action: str, *values: Path, folder: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Lint or render the chart with values files."""
    flags = [word for path in values for word in ("--values", str(path))]
    return run("deploy-python", DEPLOY / "checks" / "chart.py", action, folder, *flags)


@functools.cache
def rendered(values: Path) -> str:
    """Render the chart with one values file."""
    result = chart("template", values)
    assert result.returncode == 0, result.stderr
    return result.stdout


def documents(values: Path) -> list[dict[str, Any]]:
    """Return the manifests that a values file makes; new objects on each call."""
    return [document for document in yaml.safe_load_all(rendered(values)) if document]


def one(found: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """Return the only manifest of a kind whose name ends so."""
    (document,) = (d for d in found if d["kind"] == kind and d["metadata"]["name"].endswith(suffix))
    return document


def check_manifests(found: list[dict[str, Any]]) -> list[str]:
    """Return the problems that the strict check finds."""
    result = run("deploy-python", DEPLOY / "checks" / "manifests.py", input=yaml.safe_dump_all(found))
    problems = [line for line in result.stderr.splitlines() if line.startswith("manifests: ")]
    assert bool(problems) == bool(result.returncode), result
    return problems


def load(path: Path) -> ModuleType:
    """Import a program of deploy/ that is no part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tracked(*patterns: str) -> list[Path]:
    """List files of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in sorted(set(names)) if name and (ROOT / name).is_file()]


def render(text: str, folder: Path) -> list[dict[str, Any]]:
    """Render the chart with values given as text."""
    file = folder / "values.yaml"
    file.write_text(text)
    result = chart("template", file)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]
