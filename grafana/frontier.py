"""Write a load test's frontier as rules, so that the Pareto dashboard draws it under what is served.

    dspark bench --json bench.json && python -m grafana.frontier bench.json > grafana/frontier.yaml

Load the file beside rules.yaml. Each measured level of each arm is a point: median tokens per second per user, and
median tokens per second of all. Nothing is interpolated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

RECORD = "dspark:frontier:point"
AXES = {"user": "tok_s_user", "total": "tok_s"}


def rules(document: dict[str, Any]) -> dict[str, Any]:
    """Return rules of constants from what ``dspark bench --json`` wrote.

    Raises
    ------
    ValueError
        If the document holds no measured level.
    """
    found = []
    for level in document.get("summary", []):
        for arm, metrics in level["arms"].items():
            values = {axis: metrics.get(name) for axis, name in AXES.items()}
            if None in values.values():
                continue
            labels = {"arm": arm, "point": f"{arm}, {level['concurrency']} at once"}
            for axis, spread in values.items():
                expr = f"vector({float(spread['median']):.6g})"
                found.append({"record": RECORD, "expr": expr, "labels": {**labels, "axis": axis}})
    if not found:
        raise ValueError("no measured level in this file; give it what dspark bench --json wrote")
    return {"groups": [{"name": "dspark_frontier", "rules": found}]}


def main() -> int:
    """Read the file named on the command line and print the rules; 1 with one sentence if it holds none."""
    if len(sys.argv) != 2:
        print("usage: python -m grafana.frontier bench.json > grafana/frontier.yaml", file=sys.stderr)
        return 2
    try:
        document = rules(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"frontier: error: {sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    print(yaml.safe_dump(document, sort_keys=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
