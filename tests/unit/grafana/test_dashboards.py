"""What is checked in is what would be made, and every panel says what it shows, of what, in which unit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grafana_foundation_sdk")

from dspark_sglang.metrics.definitions import BY_NAME
from grafana import build
from grafana.panels import Panel, Query, description
from tests.support.prometheus import METRIC_NAME, names_in

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "grafana" / "dashboards"
PANELS = [
    pytest.param(panel, id=f"{path.stem}: {panel['title']}")
    for path in sorted(FOLDER.glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
]


@pytest.mark.parametrize("name", build.DASHBOARDS)
def test_what_is_checked_in_is_fresh(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == build.build_dashboard(build.DASHBOARDS[name]), "run: make grafana"


@pytest.mark.parametrize("name", build.DASHBOARDS)
def test_everything_can_be_filtered(name: str) -> None:
    document = json.loads((FOLDER / f"{name}.json").read_text())
    assert [v["name"] for v in document["templating"]["list"]] == ["datasource", "job", "instance", "model"]
    assert document["uid"] == f"dspark-{name}"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert len(panel["description"]) > 10
    assert panel["fieldConfig"]["defaults"]["noValue"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]
    if panel["type"] not in ("xychart", "table"):
        assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("panel", PANELS)
def test_queries_filter_and_rate_as_they_should(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expr = target["expr"]
        assert target["datasource"]["uid"] == "${datasource}"
        if "dspark:frontier" not in expr:
            for selector in re.findall(r"\{(.*?)\}", expr):
                assert 'job=~"$job"' in selector, expr
        for selector in re.findall(r"sglang:num_(?:running|queue)_reqs\{(.*?)\}", expr):
            assert selector.endswith(',priority=""'), "the series of priorities are counted beside the total"
        for name in METRIC_NAME.findall(expr):
            counts = name.endswith(("_total", "_bucket", "_sum", "_count"))
            inside = re.search(
                rf"(?:rate|increase)\({re.escape(name)}\{{[^}}]*\}}\[\$__(?:rate_interval|range)\]", expr
            )
            assert bool(inside) == counts, (name, expr)


@pytest.mark.parametrize("panel", PANELS)
def test_metrics_of_ours_are_defined_in_the_description(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for name in names_in(target["expr"]):
            if name.startswith("dspark_"):
                base = name if name in BY_NAME else re.sub(r"_(bucket|sum|count)$", "", name)
                assert BY_NAME[base].help in panel["description"]


def test_a_metric_that_is_not_defined_cannot_be_drawn() -> None:
    with pytest.raises(KeyError, match="dspark_no_such_thing"):
        description(Panel("x", "y", [Query("rate(dspark_no_such_thing_total{SEL}[1m])")]))


def test_stale_dashboards_are_found_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["build", "--check"])
    assert build.main() == 1
    assert "is stale; run: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", ["build"])
    assert build.main() == 0
    monkeypatch.setattr("sys.argv", ["build", "--check"])
    assert build.main() == 0
