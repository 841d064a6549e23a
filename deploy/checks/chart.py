"""Lint or render the Helm chart without a helm program or a cluster; run by deploy-python of tools/get_deploy_tools.sh.

``chart.py lint|template CHART [--values FILE ...] [--name RELEASE]``
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

WARNING = 2


def main() -> int:
    """Print the manifests or what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("lint", "template"))
    parser.add_argument("chart", type=Path)
    parser.add_argument("--values", type=Path, action="append", default=[], help="as -f of helm; later files win")
    parser.add_argument("--name", default="dspark", help="of the release")
    args = parser.parse_args()
    try:
        values = merged(args.values)
        if args.action == "template":
            sys.stdout.write(template(args.chart, values, args.name))
            return 0
        problems = lint(args.chart, values)
    except (helm.HelmError, OSError, yaml.YAMLError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"chart: {problem}", file=sys.stderr)
    return int(bool(problems))


def lint(chart: Path, values: dict[str, Any]) -> list[str]:
    """Return warnings and errors of ``helm lint --strict``."""
    report = helm.lint(chart, values, strict=True)
    found = [f"{m['path']}: {m['error']}" for m in report["messages"] if m["severity"] >= WARNING]
    return found + [str(error) for error in report.get("errors") or []]


def template(chart: Path, values: dict[str, Any], name: str) -> str:
    """Return the manifests as one YAML stream, each with the template that it is from; hooks are at the end.

    Raises
    ------
    HelmError
        If the values do not fit the chart's schema, or a template fails.
    """
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        rendered = loaded.render(values, name=name, namespace="default", is_install=True)
    pieces = []
    for path in sorted(rendered, key=lambda path: ("/tests/" in path, path)):
        if not path.endswith(".yaml"):
            continue
        for text in ("\n" + rendered[path]).split("\n---\n"):
            if yaml.safe_load(text) is not None:
                pieces.append(f"---\n# Source: {path}\n{text.strip()}\n")
    return "".join(pieces)


def merged(files: list[Path]) -> dict[str, Any]:
    """Merge values files as helm does: later ones win, mappings are merged, everything else is replaced."""
    values: dict[str, Any] = {}
    for file in files:
        merge(values, yaml.safe_load(file.read_text()) or {})
    return values


def merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Put ``more`` into ``into``, which is changed."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


if __name__ == "__main__":
    sys.exit(main())
