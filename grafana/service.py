"""The Service dashboard: traffic, latency, queue, memory, errors and the host's time."""

from __future__ import annotations

from grafana.panels import Panel, Query

TITLE, UID = "DSpark: Service", "dspark-service"
ABOUT = "What clients meet: traffic, latency, queue, KV memory, errors; and where the host's time goes."
STEP = "[$__rate_interval]"


def _rate(name: str, by: str = "", labels: str = "SEL") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({name}{{{labels}}}{STEP}))"


def _latency(name: str) -> list[Query]:
    buckets = _rate(f"sglang:{name}_bucket", "le")
    return [Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)]


PANELS = (
    Panel(
        "Up",
        "Servers that answer Prometheus, of those it knows.",
        [Query("sum(up{SELHOST})", "up"), Query("count(up{SELHOST})", "known")],
        kind="stat",
        width=6,
        height=4,
        quiet="No server is known",
    ),
    Panel(
        "Requests finished",
        "Per second.",
        [Query(_rate("dspark_requests_finished_total"))],
        kind="stat",
        width=6,
        height=4,
    ),
    Panel("Queue", "Requests that wait.", [Query("sum(sglang:num_queue_reqs{TOTAL})")], "short", "stat", 6, 4),
    Panel(
        "KV memory",
        "Largest share in use.",
        [Query("max(sglang:token_usage{SEL})")],
        "percentunit",
        "stat",
        6,
        4,
        high=1.0,
    ),
    Panel(
        "Finished by reason",
        "An abort is a client that left, a request that was cancelled, or one that was refused while it waited.",
        [Query(_rate("dspark_requests_finished_total", "finish"), "{{finish}}")],
        "reqps",
        stacked=True,
    ),
    Panel(
        "Prompt tokens",
        "Computed and found in the prefix cache.",
        [Query(_rate("sglang:realtime_tokens_total", "mode", 'SEL,mode=~"prefill.*"'), "{{mode}}")],
        stacked=True,
    ),
    Panel(
        "Answers of the HTTP server",
        "By status; health checks and metrics left out.",
        [
            Query(
                _rate("sglang:http_responses_total", "status_code", 'SELHOST,endpoint=~"/v1/.*|/generate"'),
                "{{status_code}}",
            )
        ],
        "reqps",
        stacked=True,
        quiet="No requests in this range",
    ),
    Panel("Time to first token", "Queueing and prefill.", _latency("time_to_first_token_seconds"), "s"),
    Panel(
        "Time between tokens",
        "SGLang's, by token: a chunk's gap over its tokens. A stall shows better in the speed per user.",
        _latency("inter_token_latency_seconds"),
        "s",
        quiet="No streaming in this range",
    ),
    Panel("Time of a request", "From its arrival to its end.", _latency("e2e_request_latency_seconds"), "s"),
    Panel(
        "Requests",
        "Running and waiting.",
        [
            Query("sum(sglang:num_running_reqs{TOTAL})", "running"),
            Query("sum(sglang:num_queue_reqs{TOTAL})", "waiting"),
        ],
    ),
    Panel("Time in the queue", "Of requests that began to run.", _latency("queue_time_seconds"), "s"),
    Panel(
        "KV memory and retractions",
        "Share in use; requests per second that were taken out and computed again.",
        [
            Query("max(sglang:token_usage{SEL})", "in use"),
            Query(_rate("sglang:num_retracted_requests_total"), "retracted"),
        ],
        "short",
    ),
    Panel(
        "Prefix cache",
        "Share of prompt tokens found in it.",
        [Query("avg(sglang:cache_hit_rate{SEL})", "hit rate")],
        "percentunit",
        high=1.0,
    ),
    Panel(
        "Time of a decode step",
        "By what it was spent on. Planning and ranking are the host's, the rest is SGLang's scheduling and streaming.",
        [
            Query(
                f"{_rate('dspark_phase_seconds_total', 'phase')} / scalar({_rate('dspark_load_steps_total')} > 0)",
                "{{phase}}",
            )
        ],
        "s",
        stacked=True,
    ),
    Panel(
        "Decode steps",
        "Median and 95th percentile of their time.",
        [
            Query(
                f"histogram_quantile({q}, {_rate('dspark_step_seconds_bucket', 'le, mode')})",
                f"p{q * 100:g}, {{{{mode}}}}",
            )
            for q in (0.5, 0.95)
        ],
        "s",
    ),
    Panel(
        "Processor of the scheduler",
        "Cores that its process keeps busy.",
        [Query(_rate("sglang:scheduler_process_cpu_seconds_total"), "scheduler")],
    ),
    Panel(
        "Scheduler idle",
        "Share of time without work.",
        [Query(_rate("sglang:scheduler_idle_seconds_total"), "idle")],
        "percentunit",
    ),
)
