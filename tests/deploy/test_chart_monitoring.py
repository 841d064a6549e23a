"""What the Helm chart renders for Prometheus, Grafana and KEDA."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from grafana import runbooks
from tests.support.deploy import CHART, DEPLOY, chart, documents, one, render, require
from tests.support.prometheus import GRAFANA, names_in
from tests.support.server import ROOT

GPU, MULTI = (CHART / f"values-{name}.yaml" for name in ("gpu", "multi-node"))
EVERYTHING = CHART / "ci" / "everything-values.yaml"


@pytest.mark.parametrize(
    ("values", "kind", "key", "job"),
    [
        (GPU, "ServiceMonitor", "endpoints", "dspark"),
        (EVERYTHING, "PodMonitor", "podMetricsEndpoints", "dspark"),
        (MULTI, "PodMonitor", "podMetricsEndpoints", "dspark-plain"),
    ],
)
def test_the_job_is_the_one_that_alerts_ask_for(values: Path, kind: str, key: str, job: str) -> None:
    """A server without DSpark has none of its metrics, whose absence is an alert."""
    found = documents(values)
    (endpoint,) = one(found, kind)["spec"][key]
    assert {"targetLabel": "job", "replacement": job} in endpoint["relabelings"]
    plain = any("--plain" in word for word in found[-1]["spec"]["containers"][0]["args"])
    assert plain == (job == "dspark-plain")
    assert 'job="dspark"' in (GRAFANA / "alerts.yaml").read_text()


def test_rules_and_dashboards_are_those_of_grafana() -> None:
    found = documents(EVERYTHING)
    files = [yaml.safe_load((GRAFANA / name).read_text())["groups"] for name in ("rules.yaml", "alerts.yaml")]
    assert one(found, "PrometheusRule")["spec"]["groups"] == files[0] + files[1]
    boards = one(found, "ConfigMap", "-dashboards")
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    expected = {f"dspark-{path.name}": path.read_text() for path in (GRAFANA / "dashboards").glob("*.json")}
    assert {name: text.strip() for name, text in boards["data"].items()} == {
        name: text.strip() for name, text in expected.items()
    }
    assert one(found, "ConfigMap", "-smoke")["data"]["smoke.py"] == (DEPLOY / "docker" / "smoke.py").read_text()


def test_alerts_have_links_where_the_pages_are_published(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    pages = {"monitoring": {"rules": True, "runbookUrl": "https://example.com/runbooks/"}}
    values.write_text(yaml.safe_dump({"model": {"demo": True}, **pages}))
    alerts = runbooks.linked((GRAFANA / "alerts.yaml").read_text(), "https://example.com/runbooks")
    groups = yaml.safe_load((GRAFANA / "rules.yaml").read_text())["groups"] + yaml.safe_load(alerts)["groups"]
    assert one(documents(values), "PrometheusRule")["spec"]["groups"] == groups
    values.write_text(yaml.safe_dump({"model": {"demo": True}, "monitoring": {"runbookUrl": "docs/runbooks"}}))
    assert "runbookUrl" in chart("lint", values).stderr


def test_autoscaling_asks_for_metrics_that_exist(tmp_path: Path) -> None:
    triggers = one(documents(EVERYTHING), "ScaledObject")["spec"]["triggers"]
    queries = {trigger["name"]: trigger["metadata"]["query"] for trigger in triggers}
    # KEDA takes an empty answer for 0, unless told otherwise: then a fleet that nobody scrapes would shrink under load.
    for trigger in triggers:
        assert trigger["metadata"].get("ignoreNullValues") == "false" or "or vector(0)" in trigger["metadata"]["query"]
    assert set(queries) == {"queued", "running", "missed-speed"}
    known = (ROOT / "tests" / "golden" / "sglang-metrics.txt").read_text()
    for query in queries.values():
        # With priorities the series of each are beside the total.
        assert all(match == 'priority="",' for match in re.findall(r"_reqs\{(.{12})", query))
        for name in names_in(query):
            assert name in known or name.removesuffix("_total") in (ROOT / "docs" / "observability.md").read_text()
    rules = [{"record": f"x:{name.replace('-', '_')}", "expr": query} for name, query in queries.items()]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    assert subprocess.run([require("promtool"), "check", "rules", str(file)], capture_output=True).returncode == 0


def test_autoscaling_by_a_scrape_of_ones_own(tmp_path: Path) -> None:
    text = "model: {demo: true}\nautoscaling: {enabled: true, scrapedElsewhere: true}\n"
    assert one(render(text, tmp_path), "ScaledObject")
