"""Write a load test's frontier as rules, so that the Pareto dashboard draws it under what is served.

    dspark loadtest pareto ... && python -m grafana.frontier runs/pareto/pareto.json > grafana/frontier.yaml

Load the file beside rules.yaml. Each measured load of each arm is a point: median tokens per second per user, and
median tokens per second of all, as served, not divided by devices. Loads with requests that failed are left out, and
nothing is interpolated. What ``dspark bench --json`` wrote is read as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

RECORD = "dspark:frontier:point"
# What `dspark loadtest pareto` and `dspark bench` call their files; tests/unit/grafana holds it to what they write.
PARETO, BENCH = "dspark-loadtest-pareto/1", 1
REMEDY = "give the pareto.json of dspark loadtest pareto, or what dspark bench --json wrote"


class Point(NamedTuple):
    """One arm at one load; ``user`` and ``total`` are medians in tokens per second, None where not measured."""

    arm: str
    name: str
    user: float | None
    total: float | None


def rules(document: Any) -> dict[str, Any]:
    """Return rules of constants from a measured sweep.

    Raises
    ------
    ValueError
        If the document is of another kind, lacks a field of its kind, or holds no measured load; says which.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in (PARETO, BENCH):
        raise ValueError(f"its schema is {schema!r}, not {PARETO} or {BENCH}; {REMEDY}")
    try:
        points = list(_pareto_points(document) if schema == PARETO else _bench_points(document))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no sweep of schema {schema} ({type(error).__name__}: {error}); {REMEDY}") from error
    found = []
    for arm, name, user, total in points:
        if user is not None and total is not None:
            labels = {"arm": arm, "point": f"{arm}, {name}"}
            for axis, value in (("user", user), ("total", total)):
                found.append({"record": RECORD, "expr": f"vector({value:.6g})", "labels": {**labels, "axis": axis}})
    if not found:
        raise ValueError(f"it holds no load that was measured without failures; {REMEDY}")
    return {"groups": [{"name": "dspark_frontier", "rules": found}]}


def _pareto_points(document: dict[str, Any]) -> Iterator[Point]:
    # "concurrent requests" or "requests a second".
    unit = document.get("by", "load")
    for arm, measured in document["summary"]["arms"].items():
        for point in measured["points"]:
            if not point["failed"]:
                yield Point(
                    arm, f"{point['load']:g} {unit}", _median(point["tok_s_user"]), _median(point["output_tok_s"])
                )


def _bench_points(document: dict[str, Any]) -> Iterator[Point]:
    for level in document["summary"]:
        for arm, metrics in level["arms"].items():
            user, total = metrics.get("tok_s_user"), metrics.get("tok_s")
            yield Point(arm, f"{level['concurrency']} concurrent requests", _median(user), _median(total))


def _median(spread: dict[str, Any] | None) -> float | None:
    return None if spread is None else float(spread["median"])


def main() -> int:
    """Read the file named on the command line and print the rules; 1 with one sentence if it holds none."""
    if len(sys.argv) != 2:
        print("usage: python -m grafana.frontier pareto.json > grafana/frontier.yaml", file=sys.stderr)
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
