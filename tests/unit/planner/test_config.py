from __future__ import annotations

from typing import Any

import pytest

from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import PlannerConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "greedy"),
        ("verify_drafts", -1),
        ("verify_drafts", 2.0),
        ("verify_drafts", True),
        ("max_budget", -1),
        ("threshold", 1.5),
        ("threshold", float("nan")),
        ("min_gain", float("inf")),
        ("min_gain", "0.1"),
        ("keep_gain", 0.05),
        ("probe_interval", 0),
        ("probe_interval_max", 8),
        ("row_patience", 0),
        ("row_margin", -0.1),
        ("smoothing_rows", -1.0),
        ("burst_share", 1.1),
        ("lag", -1),
        ("max_age", 0),
        ("prior_confidence", 1.0),
    ],
)
def test_a_field_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        PlannerConfig(**{field: value})


def test_zero_is_a_value() -> None:
    config = PlannerConfig(verify_drafts=0, max_budget=0, threshold=0, smoothing_rows=0, lag=0)
    assert (config.verify_drafts, config.max_budget) == (0, 0)


def test_the_default_is_adaptive_with_the_lag_of_the_paper() -> None:
    assert (PlannerConfig().policy, PlannerConfig().lag) == ("adaptive", 2)
