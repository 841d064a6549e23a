"""Every metric has a good name, known labels and few series."""

from __future__ import annotations

import re

import pytest

from dspark_sglang.metrics.definitions import (
    BY_NAME,
    DEFAULT_SLA,
    LABEL_VALUES,
    METRICS,
    Metric,
    edges_of,
    label_values,
)
from dspark_sglang.metrics.exporter import MOST_INFO
from dspark_sglang.metrics.recorder import MOST_ROWS
from dspark_sglang.metrics.sheet import Sheet
from dspark_sglang.metrics.users import SPAN_S
from sgl_dspark.planner.policy import ROW_REASONS, STEP_REASONS


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"dspark_[a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.help.endswith(".")
    assert metric.unit
    assert metric.formula
    if "seconds" in metric.unit:
        assert "_seconds" in metric.name


def test_no_name_twice() -> None:
    assert len(BY_NAME) == len(METRICS)


def test_labels_are_known_unless_they_say_what_is_served() -> None:
    known = label_values(7, DEFAULT_SLA)
    for metric in METRICS:
        assert metric.free or set(metric.labels) <= set(known), metric.name


@pytest.mark.parametrize("metric", [m for m in METRICS if m.kind == "histogram"], ids=lambda metric: metric.name)
def test_edges_ascend(metric: Metric) -> None:
    edges = edges_of(metric, 7, DEFAULT_SLA)
    assert list(edges) == sorted(set(edges))
    assert edges


def test_every_anchor_is_an_edge() -> None:
    assert {12.5, 20.0, 333.0} <= set(edges_of(BY_NAME["dspark_user_tokens_per_second"], 7, (12.5, 20.0, 333.0)))


def test_series_stay_few() -> None:
    """At the largest block and most anchors that are allowed; a histogram has a series per bucket."""
    sheet = Sheet(16, [float(n) for n in range(1, 17)])
    assert sum(1 if cell.size == 1 else cell.size + 1 for cell in sheet) < 700


def test_every_fallback_has_its_series() -> None:
    assert {*ROW_REASONS, *STEP_REASONS} < set(LABEL_VALUES["reason"])


def test_numbers_in_the_definitions_are_those_of_the_code() -> None:
    assert f"of at most {MOST_ROWS} requests" in BY_NAME["dspark_calibration_judged_total"].formula
    assert f"the first {MOST_INFO}" in BY_NAME["dspark_policy_info"].help
    assert SPAN_S == 2.0
    assert "about two seconds" in BY_NAME["dspark_user_tokens_per_second"].help
