"""Write the tables of docs/observability.md from metric definitions, rules and alerts; --check fails if stale."""

from __future__ import annotations

import argparse
import re
import sys
from itertools import groupby
from pathlib import Path

import yaml

from dspark_sglang.metrics.definitions import LABEL_VALUES, METRICS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "observability.md"


def metric_tables() -> str:
    """Return a table for each group of metrics."""
    parts = []
    for group, metrics in groupby(METRICS, key=lambda metric: metric.group):
        rows = ["| metric | unit | what it is | what is added |", "|---|---|---|---|"]
        for m in metrics:
            labels = f" {{{', '.join(m.labels)}}}" if m.labels else ""
            bar, kind = "\\|", "" if m.kind == "counter" else f" ({m.kind})"
            rows.append(f"| `{m.name}`{labels}{kind} | {m.unit} | {m.help} | {m.formula.replace('|', bar)} |")
        parts.append(f"### {group}\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


def label_table() -> str:
    """Return the values of every label that is known beforehand."""
    rows = ["| label | values |", "|---|---|"]
    rows += [f"| `{label}` | {', '.join(values)} |" for label, values in LABEL_VALUES.items()]
    return "\n".join(rows)


def rule_table() -> str:
    """Return the recording rules."""
    groups = yaml.safe_load((ROOT / "grafana" / "rules.yaml").read_text())["groups"]
    rows = ["| rule | expression |", "|---|---|"]
    for rule in (rule for group in groups for rule in group["rules"]):
        rows.append(f"| `{rule['record']}` | `{' '.join(rule['expr'].split())}` |")
    return "\n".join(rows)


def alert_table() -> str:
    """Return the alerts, with their pages."""
    groups = yaml.safe_load((ROOT / "grafana" / "alerts.yaml").read_text())["groups"]
    rows = ["| alert | severity | after | meaning |", "|---|---|---|---|"]
    for rule in (rule for group in groups for rule in group["rules"]):
        name, text = rule["alert"], re.sub(r"\{\{.*?\}\}", "…", rule["annotations"]["description"])
        rows.append(f"| [{name}](runbooks/{name}.md) | {rule['labels']['severity']} | {rule['for']} | {text} |")
    return "\n".join(rows)


TABLES = {"metrics": metric_tables, "labels": label_table, "rules": rule_table, "alerts": alert_table}


def main() -> int:
    """Rewrite what is between the markers; 1 with --check if anything would change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the tables are stale")
    check = parser.parse_args().check
    before = text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: made by tools/metric_tables.py -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            print(f"docs/observability.md: the markers of {name} are missing")
            return 1
        head, rest = text.split(begin)
        text = f"{head}{begin}\n\n{make()}\n\n{end}{rest.split(end)[1]}"
    if text != before:
        if check:
            print("the tables of docs/observability.md are stale; run: make grafana")
            return 1
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
