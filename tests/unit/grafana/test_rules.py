"""Rules and alerts: promtool accepts them, each alert has a page, and cases in which it fires and stays quiet."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dspark_sglang.metrics.definitions import BY_NAME, DEFAULT_SLA, LABEL_VALUES, ROUND_REASONS, anchor_label
from dspark_sglang.metrics.flags import SGLANG_EDGES
from grafana import runbooks
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
    page = ROOT / alert["annotations"]["runbook"]
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
        for reason in re.findall(r'reason[!=]~"([^"]*)"', rule["expr"]):
            assert set(reason.split("|")) <= set(LABEL_VALUES["reason"])
        # With priorities the series of each are beside the total.
        for labels in re.findall(r"sglang:num_(?:running|queue)_reqs(.{13})", rule["expr"]):
            assert labels == '{priority=""}'
        for anchor in re.findall(r'sla="([^"]*)"', rule["expr"]):
            assert anchor in {anchor_label(value) for value in DEFAULT_SLA}
        for edge in re.findall(r'time_to_first_token_seconds_bucket\{le="([^"]*)"', rule["expr"]):
            assert float(edge) in SGLANG_EDGES["--bucket-time-to-first-token"]


def test_pages_name_rules_and_metrics_that_exist() -> None:
    recorded = {rule["record"] for rule in prom.rules() if "record" in rule}
    for path in [*(ROOT / "docs").glob("**/*.md"), ROOT / "README.md", *(ROOT / "deploy").glob("**/*.md")]:
        text = path.read_text()
        assert set(re.findall(r"\bdspark:[a-z0-9_]+:[a-z0-9_]+", text)) <= recorded, path
        for name in re.findall(r"\bdspark_[a-z_]+_total\b", text):
            assert name in BY_NAME, (path, name)


def test_what_is_counted_for_requests_is_a_share_of_rounds() -> None:
    (rule,) = (rule for rule in prom.rules() if rule.get("record") == "dspark:fallbacks:ratio5m")
    per_round, per_step = rule["expr"].split(" or ")
    assert f'reason=~"{"|".join(ROUND_REASONS)}"' in per_round
    assert "dspark_rounds_total" in per_round
    assert f'reason!~"{"|".join(ROUND_REASONS)}"' in per_step
    assert "dspark_steps_total" in per_step


def test_the_page_on_fallbacks_names_every_reason_that_alerts_and_no_other() -> None:
    (alert,) = (rule for rule in ALERTS if rule["alert"] == "DsparkFallbacks")
    (normal,) = re.findall(r'reason!~"([^"]*)"', alert["expr"])
    table = [line for line in (ROOT / alert["annotations"]["runbook"]).read_text().splitlines() if line[:2] == "| "]
    named = {name for line in table[1:] for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])}
    assert named == set(LABEL_VALUES["reason"]) - set(normal.split("|"))


@pytest.mark.parametrize("base", ["https://example.com/pages", "http://wiki.example.com/x/docs/runbooks/"])
def test_alerts_get_links_to_where_the_pages_are(base: str, tmp_path: Path) -> None:
    text = runbooks.linked((prom.GRAFANA / "alerts.yaml").read_text(), base)
    path = tmp_path / "alerts.yaml"
    path.write_text(text)
    promtool("check", "rules", str(path))
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert [rule["annotations"].pop("runbook_url") for rule in rules] == [
        f"{base.rstrip('/')}/{alert['alert']}.md" for alert in ALERTS
    ]
    assert rules == ALERTS


@pytest.mark.parametrize("base", ["", "docs/runbooks", "ftp://h/x", "https://", 'https://h/"x', "https://h/{{ x }}"])
def test_what_is_no_address_of_pages_is_refused(
    base: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["runbooks", base])
    assert runbooks.main() == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("runbooks: the address of the pages must be such as https://")
