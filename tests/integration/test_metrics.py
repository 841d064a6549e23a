"""What a real Prometheus sees of the real server: exact tokens, speeds as clients time them, every panel and rule."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

from dspark_sglang.bench.client import RequestResult, RequestSettings, measure_level
from dspark_sglang.metrics.definitions import DEFAULT_SLA, METRICS
from dspark_sglang.metrics.users import SPAN_S
from sgl_dspark.data.prompt_set import Prompt
from tests.support import prometheus as prom
from tests.support.pair import questions
from tests.support.prometheus import Prometheus
from tests.support.server import ROOT, ServerProcess
from tests.support.traffic import Received, Visit, serve_all

pytestmark = pytest.mark.server

SGLANG_NAMES = ROOT / "tests" / "golden" / "sglang-metrics.txt"
DELIVERED = "sum(dspark_accepted_tokens_total) + sum(dspark_bonus_tokens_total)"
# Expressions that return nothing on a healthy server in a minute, with the reason.
EMPTY = {
    "dspark:frontier:point": "the rules of a load test's frontier are loaded by whoever has one",
}


@dataclass(frozen=True)
class Watched:
    """Prometheus, what it had counted before the traffic, and what clients got meanwhile."""

    prometheus: Prometheus
    delivered_before: float
    finished_before: float
    received: list[Received]

    def delivered(self) -> float:
        return self.prometheus.value(DELIVERED) - self.delivered_before


def mixed_visits() -> list[Visit]:
    """Stream and do not, greedy and sampled, long and short; some are cancelled, some stop at a string in a block."""
    random_ = random.Random(5)
    made = []
    for _ in range(90):
        streamed = random_.random() < 0.8
        cancel = random_.choice([None, None, None, 1, 5, 20]) if streamed else None
        temperature = random_.choice([0.0, 0.0, 1.0])
        stop = [" the"] if random_.random() < 0.2 else []
        length = random_.choice([1, 2, 7, 40, 120])
        made.append(Visit(random_.randrange(200), length, streamed, cancel, temperature, random_.random() < 0.5, stop))
    return made


def burst_visits() -> list[Visit]:
    """Ask for more than the KV pool holds, so that requests are taken out and resumed."""
    return [Visit(i, 200, ignore_eos=True) for i in range(40)]


def sla_counts(watched: Prometheus) -> dict[float, tuple[float, float]]:
    """Return seconds of users at each anchor, and all."""
    return {
        anchor: (
            watched.value(f'sum(dspark_sla_seconds_total{{sla="{anchor:g}",met="yes"}})'),
            watched.value(f'sum(dspark_sla_seconds_total{{sla="{anchor:g}"}})'),
        )
        for anchor in DEFAULT_SLA
    }


@pytest.fixture(scope="module")
def watched(dspark: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    prom.require("prometheus")
    observer = Prometheus(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{dspark.port}")
    observer.start()
    try:
        observer.wait_for('up{job="dspark"} == 1')
        dspark.wait_until_idle()
        observer.wait_for_scrapes()
        before = [observer.value(expr) for expr in (DELIVERED, "sum(dspark_requests_finished_total)")]
        received = serve_all(dspark, mixed_visits(), 12, "mixed")
        received += serve_all(dspark, burst_visits(), 40, "burst")
        dspark.wait_until_idle()
        # What was counted last is written within half a second, and then scraped.
        observer.wait_for(f"sum(dspark_requests_finished_total) >= {before[1] + len(received)}")
        observer.wait_for_scrapes()
        yield Watched(observer, *before, received)
    finally:
        observer.stop()


def test_accepted_and_bonus_tokens_are_what_clients_received(watched: Watched) -> None:
    assert watched.delivered() == sum(received.tokens for received in watched.received)


def test_the_traffic_had_everything_in_it(watched: Watched) -> None:
    kinds = [received.finish for received in watched.received]
    for kind in ("stop", "length", "abort"):
        assert kinds.count(kind) > 3, kind
        counted = watched.prometheus.value(f'sum(increase(dspark_requests_finished_total{{finish="{kind}"}}[10m]))')
        assert counted > 0, kind
    assert sum(received.retractions for received in watched.received) > 0
    assert watched.prometheus.value("sum(dspark_cut_tokens_total)") > 0
    finished = watched.prometheus.value("sum(dspark_requests_finished_total)") - watched.finished_before
    assert finished == len(watched.received)


def streams(server: ServerProcess, prometheus: Prometheus, max_tokens: int) -> list[RequestResult]:
    """Time some streams as a client that benchmarks does; return when Prometheus has seen them all."""
    finished = prometheus.value("sum(dspark_requests_finished_total)")
    asked = [Prompt("pair", ({"role": "user", "content": question},)) for question in questions(64)]
    settings = RequestSettings(max_tokens=max_tokens, ignore_eos=True)
    results = asyncio.run(measure_level(server.url, asked, 16, settings, flush=False, warm_up=False))
    prometheus.wait_for(f"sum(dspark_requests_finished_total) >= {finished + len(results)}")
    prometheus.wait_for_scrapes()
    return results


def test_speed_and_attainment_are_what_clients_timed(dspark: ServerProcess, watched: Watched) -> None:
    """By the server's counters and by the clock of the client that benchmarks use.

    Streams take about a third of a span on any machine, so that none has a rest that attainment leaves out.
    The share of time at an anchor lies between the shares, of the time that clients waited, of those that met it by 3 %
    and that missed it by less; and the two clocks tell times that differ by less than 3 %.
    """
    usual = fmean((r.completion_tokens - 1) / (r.end - r.first) for r in streams(dspark, watched.prometheus, 30))
    names = "sum(dspark_user_tokens_total)", "sum(dspark_user_seconds_total)"
    before, sla_before = [watched.prometheus.value(name) for name in names], sla_counts(watched.prometheus)
    results = streams(dspark, watched.prometheus, max(10, min(300, int(usual * SPAN_S / 3))))
    tokens, seconds = sum(r.completion_tokens - 1 for r in results), sum(r.end - r.first for r in results)
    counted, waited = (watched.prometheus.value(name) - old for name, old in zip(names, before, strict=True))
    assert counted == tokens
    assert counted / waited == pytest.approx(tokens / seconds, rel=0.03)
    times = [r.end - r.first for r in results]
    speeds = [(r.completion_tokens - 1) / time for r, time in zip(results, times, strict=True)]
    for anchor, (met_after, all_after) in sla_counts(watched.prometheus).items():
        met, whole = met_after - sla_before[anchor][0], all_after - sla_before[anchor][1]
        assert whole == pytest.approx(sum(times), rel=0.03)
        least, most = (fmean((speed >= anchor * factor for speed in speeds), weights=times) for factor in (1.03, 0.97))
        assert least - 0.03 <= met / whole <= most + 0.03, anchor


def test_every_panel_has_data(watched: Watched) -> None:
    empty = [
        f"{panel}: {expr}"
        for panel, expr in prom.dashboard_expressions()
        if not any(name in expr for name in EMPTY) and not watched.prometheus.has_data(expr)
    ]
    assert empty == []


def test_what_may_be_empty_is(watched: Watched) -> None:
    for name in EMPTY:
        assert not watched.prometheus.has_data(f'{{__name__="{name}"}}'), f"{name} has data now; take it off the list"


def test_every_recording_rule_has_data_and_every_alert_is_evaluated(watched: Watched) -> None:
    for rule in prom.rules():
        if "record" in rule:
            assert watched.prometheus.has_data(rule["record"]), rule["record"]
    found = [rule for group in watched.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(found) == len(prom.rules())
    for rule in found:
        assert rule["health"] == "ok", (rule["name"], rule.get("lastError"))
    firing = [rule["name"] for rule in found if rule["type"] == "alerting" and rule["state"] == "firing"]
    assert firing == []


def test_every_name_in_dashboards_and_rules_exists(watched: Watched) -> None:
    exported = set(watched.prometheus.get("label/__name__/values"))
    expressions = [expr for _, expr in prom.dashboard_expressions()] + [rule["expr"] for rule in prom.rules()]
    used = {name for expr in expressions for name in prom.names_in(expr)} - set(EMPTY)
    assert used - exported == set()
    ours = {metric.name for metric in METRICS if metric.kind != "histogram"}
    assert ours - exported == set()
    golden = set(Path(SGLANG_NAMES).read_text().split())
    assert {name for name in used if name.startswith("sglang:")} == golden


def test_scrapes_are_quick_and_series_few(watched: Watched) -> None:
    assert watched.prometheus.value('sum(count({__name__=~"dspark_.*"}))') < 700
