"""Rules and alerts: promtool accepts them, each alert has a page, and cases in which it fires and stays quiet."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dspark_sglang.metrics.definitions import BY_NAME, DEFAULT_SLA, LABEL_VALUES, anchor_label
from dspark_sglang.metrics.flags import SGLANG_EDGES
from grafana import frontier
from tests.support import prometheus as prom

ROOT = Path(__file__).resolve().parents[3]
ALERTS = [rule for rule in prom.rules() if "alert" in rule]
CASES = yaml.safe_load((prom.GRAFANA / "alerts_test.yaml").read_text())["tests"]


def promtool(*arguments: str) -> None:
    result = subprocess.run(
        [prom.require("promtool"), *arguments], cwd=prom.GRAFANA, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_accepts_rules_and_alerts() -> None:
    promtool("check", "rules", *(str(path) for path in prom.RULES))


def test_alerts_fire_and_stay_quiet_as_their_cases_say() -> None:
    promtool("test", "rules", "alerts_test.yaml")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_both_cases_and_a_page(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    tests = [test for case in CASES for test in case["promql_expr_test"] if f'alertname="{name}"' in test["expr"]]
    assert {bool(test["exp_samples"]) for test in tests} == {True, False}
    page = ROOT / alert["annotations"]["runbook_url"]
    assert page.read_text().startswith(f"# {name}\n")
    for part in ("**Means**", "**Look at**", "**Do**"):
        assert part in page.read_text(), part
    assert alert["labels"]["severity"] in ("warning", "critical")


def test_every_page_belongs_to_an_alert() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert pages == {alert["alert"] for alert in ALERTS}


def test_names_and_labels_of_ours_exist() -> None:
    recorded = {rule["record"] for rule in prom.rules() if "record" in rule}
    for rule in prom.rules():
        for name in prom.names_in(rule["expr"]):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            known = name in BY_NAME or base in BY_NAME or name in recorded
            assert known or name.startswith("sglang:") or name == "up", name
        for reason in re.findall(r'reason!~"([^"]*)"', rule["expr"]):
            assert set(reason.split("|")) <= set(LABEL_VALUES["reason"])
        for anchor in re.findall(r'sla="([^"]*)"', rule["expr"]):
            assert anchor in {anchor_label(value) for value in DEFAULT_SLA}
        for edge in re.findall(r'time_to_first_token_seconds_bucket\{le="([^"]*)"', rule["expr"]):
            assert float(edge) in SGLANG_EDGES["--bucket-time-to-first-token"]


def test_a_frontier_becomes_rules_that_promtool_accepts(tmp_path: Path) -> None:
    level = {
        "concurrency": 4,
        "arms": {"plain": {"tok_s": {"median": 80.5}, "tok_s_user": {"median": 20.25}}, "other": {"tok_s": None}},
    }
    document = frontier.rules({"summary": [level]})
    assert [(r["expr"], r["labels"]["axis"]) for r in document["groups"][0]["rules"]] == [
        ("vector(20.25)", "user"),
        ("vector(80.5)", "total"),
    ]
    path = tmp_path / "frontier.yaml"
    path.write_text(yaml.safe_dump(document))
    promtool("check", "rules", str(path))


def test_a_file_without_measurements_is_refused() -> None:
    with pytest.raises(ValueError, match="no measured level"):
        frontier.rules({"summary": []})
