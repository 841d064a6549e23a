"""What is added to SGLang's flags, and the anchors of service."""

from __future__ import annotations

import os

import pytest

from dspark_sglang.launch import plan_launch
from dspark_sglang.metrics import flags
from dspark_sglang.metrics.definitions import DEFAULT_SLA
from sgl_dspark.errors import ConfigError

PAIR = ["--model-path", "t", "--speculative-draft-model-path", "d"]


def test_metrics_come_with_edges_that_hold_every_anchor() -> None:
    arguments = plan_launch(PAIR, plain=False, cuda=True, metrics=True).arguments
    assert "--enable-metrics" in arguments
    edges = flags.SGLANG_EDGES["--bucket-inter-token-latency"]
    for anchor in DEFAULT_SLA:
        assert min(abs(edge - 1 / anchor) for edge in edges) < 1e-6
    assert sum(1 / 225 <= edge <= 1 / 80 for edge in edges) >= 10


def test_what_the_user_set_stays() -> None:
    given = [*PAIR, "--enable-metrics", "--bucket-inter-token-latency", "0.1", "0.2"]
    arguments = plan_launch(given, plain=False, cuda=True, metrics=True).arguments
    assert arguments.count("--enable-metrics") == 1
    assert arguments.count("--bucket-inter-token-latency") == 1


def test_no_metrics_adds_nothing() -> None:
    assert "--enable-metrics" not in plan_launch(PAIR, plain=False, cuda=True).arguments


def test_anchors_are_read_in_order() -> None:
    assert flags.read_sla("80, 12.5,20", "--sla") == (12.5, 20.0, 80.0)
    assert flags.read_sla(" ", "--sla") == DEFAULT_SLA


@pytest.mark.parametrize("text", ["fast", "0,20", "-1", "20,nan", "inf", ",", ",".join(map(str, range(1, 19)))])
def test_anchors_that_are_none_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--sla must be"):
        flags.read_sla(text, "--sla")


def test_the_worker_reads_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.SLA_VARIABLE, "5")
    flags.set_sla("10,20")
    assert os.environ[flags.SLA_VARIABLE] == "10,20"
    assert flags.sla_from_environment() == (10.0, 20.0)
