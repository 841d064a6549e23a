"""The Pareto dashboard: what one user gets against what all get, live, and how that moves with load."""

from __future__ import annotations

from grafana.panels import Pair, Panel, Query

TITLE, UID = "DSpark: Pareto", "dspark-pareto"
ABOUT = "Throughput against speed per user, as served; verification by load; attainment of speed objectives."
STEP = "[$__rate_interval]"


def _by_load(numerator: str, denominator: str) -> str:
    top = f"sum by (load) (rate(dspark_load_{numerator}_total{{SEL}}{STEP}))"
    return f"{top} / (sum by (load) (rate(dspark_load_{denominator}_total{{SEL}}{STEP})) > 0)"


def _speed(quantile: float) -> Query:
    buckets = f"sum by (le) (rate(dspark_user_tokens_per_second_bucket{{SEL}}{STEP}))"
    return Query(f"histogram_quantile({quantile}, {buckets})", f"p{quantile * 100:g}")


TOKENS = "sum(dspark:output_tokens:rate1m{SEL})"
USER = f"sum(rate(dspark_user_tokens_total{{SEL}}{STEP})) / (sum(rate(dspark_user_seconds_total{{SEL}}{STEP})) > 0)"
MEAN_USER = "avg(dspark:user_speed:mean1m{SEL})"
SLA = (
    f'sum by (sla) (rate(dspark_sla_seconds_total{{SEL,met="yes"}}{STEP}))'
    f" / (sum by (sla) (rate(dspark_sla_seconds_total{{SEL}}{STEP})) > 0)"
)

PANELS = (
    Panel("Tokens per second", "All users together.", [Query(TOKENS)], "short", "stat", 6, 4),
    Panel("Tokens per second per user", "Mean while decoding.", [Query(USER)], "short", "stat", 6, 4),
    Panel(
        "Running requests",
        "As SGLang counts them.",
        [Query("sum(sglang:num_running_reqs{TOTAL})")],
        "short",
        "stat",
        6,
        4,
    ),
    Panel(
        "Verify length",
        "Mean over requests and steps, anchor included; 1 where nothing is drafted.",
        [Query("avg(dspark:verify_length:mean1m{SEL})")],
        "short",
        "stat",
        6,
        4,
    ),
    Panel(
        "Throughput against speed per user",
        "Each dot is one moment of the range: figure 7 of the paper. Up and to the right is better. The frontier of a "
        "load test is drawn over it where its rules are loaded (docs/observability.md).",
        [
            Query(MEAN_USER, "tok/s/user"),
            Query(TOKENS, "tok/s"),
            Query('max by (point) (dspark:frontier:point{axis="user"})', "", True, True),
            Query('max by (point) (dspark:frontier:point{axis="total"})', "", True, True),
        ],
        kind="scatter",
        width=12,
        height=12,
        axes=("tok/s/user", "tok/s"),
        pairs=[
            Pair("live", "A", "B", "Time", "tok/s/user", "tok/s"),
            Pair("load test", "C", "D", "point", "Value #C", "Value #D"),
        ],
    ),
    Panel(
        "Throughput by load",
        "Tokens per second of steps, by how many requests ran in them (up to the number named): figure 8 of the paper.",
        [Query(_by_load("tokens", "seconds"), "up to {{load}}", instant=True)],
        kind="bars",
        width=6,
        height=12,
    ),
    Panel(
        "Verify length by load",
        "Mean verify length of steps, by how many requests ran in them; it should fall as load rises.",
        [Query(_by_load("verify_tokens", "rounds"), "up to {{load}}", instant=True)],
        kind="bars",
        width=6,
        height=12,
    ),
    Panel(
        "Speed objectives met",
        "Share of users' time at that many tokens per second or more, by spans of about two seconds.",
        [Query(SLA, "{{sla}} tok/s/user")],
        "percentunit",
        width=12,
        high=1.0,
    ),
    Panel(
        "Speed per user",
        "What users exceed in half, nine tenths and 99 hundredths of the time is p50, p10 and p1.",
        [_speed(0.01), _speed(0.1), _speed(0.5), _speed(0.9)],
        "short",
        width=12,
    ),
    Panel(
        "Throughput and load",
        "Tokens per second of all users, and requests in a step.",
        [Query(TOKENS, "tok/s"), Query("avg(dspark:step_requests:mean1m{SEL})", "requests in a step")],
        width=12,
    ),
    Panel(
        "Verify and accept length",
        "The mean verify length is what a round costs; the mean accept length is what it earns.",
        [
            Query("avg(dspark:verify_length:mean5m{SEL})", "verify length"),
            Query("avg(dspark:accept_length:mean5m{SEL})", "accept length"),
        ],
        width=12,
    ),
)
