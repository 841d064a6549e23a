"""The verdict on the client's own error, from scripted figures."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_loadtest.commands.selfcheck import judge
from dspark_loadtest.mock.script import Script
from dspark_loadtest.plan import Outcome
from dspark_loadtest.session import Measured
from dspark_loadtest.traces.request import Trace
from tests.support.records import answered


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"ttft_s": {"p50": 0.5, "mean": 0.52}}, False),
        ({"tpot_s": {"p50": 0.0409, "mean": 0.04}}, False),
        ({"tok_s_user": {"p50": 25.0, "mean": 24.4}}, False),
        ({"send_lag_s": {"p99": 0.021}}, False),
        ({"problems": ["Tokens do not add up."]}, False),
        ({"requests": {"ok": 3, "sent": 4}}, False),
    ],
)
def test_every_figure_must_be_within_its_bound(changes: dict[str, Any], good: bool) -> None:
    summary = {
        "ttft_s": {"p50": 0.505, "mean": 0.509},
        "tpot_s": {"p50": 0.0402, "mean": 0.0398},
        "tok_s_user": {"p50": 24.9, "mean": 25.2},
        "send_lag_s": {"p99": 0.019},
        "steady_s": [0.0, 30.0],
        "client": {"cpu_share": 0.2},
        "problems": [],
        "requests": {"ok": 4, "sent": 4},
        **changes,
    }
    outcome = Outcome([answered(0, 0, [(1, 1), (9, 2)])], 30.0, 1.0, (0.0, 30.0))
    rows, verdict = judge(Measured(outcome, Trace(()), summary), Script(ttft_s=0.5, tpot_s=0.04))
    assert verdict is good
    assert any(row[-1] == "NO" for row in rows) is not good
