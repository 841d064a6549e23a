"""One measured run from beginning to end: look at the server, warm it up, replay, count, compare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvloop

from dspark_loadtest.client import AskSettings, ChatClient
from dspark_loadtest.endpoint import Endpoint
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.plan import Outcome, Plan
from dspark_loadtest.progress import Progress
from dspark_loadtest.prompts import Composer, Library, estimate
from dspark_loadtest.reconcile import read_counts, read_settled, reconcile
from dspark_loadtest.record import UNBROKEN
from dspark_loadtest.replay import Replay
from dspark_loadtest.stats import FAULTLESS, Slo, summarise
from dspark_loadtest.traces.fit import Fit, fit_lengths
from dspark_loadtest.traces.request import Trace, TraceRequest
from dspark_loadtest.warming import warm_up

WARM_UP_TOKENS = 16
EMPTIED = "emptied"
# A context that nobody states; only a server that is not SGLang leaves it open.
_DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Served:
    """What a server says about itself.

    Attributes
    ----------
    endpoint : Endpoint
    model : str
    context : int
        Tokens of prompt and answer together.
    template : int
        Tokens that the chat template adds.
    texts : Library
        Texts measured with the server's tokenizer.
    counted : bool
        Whether it was; otherwise lengths are estimated.
    """

    endpoint: Endpoint
    model: str
    context: int
    template: int
    texts: Library
    counted: bool


def look_at(url: str, prompts: Sequence[Path | None]) -> Served:
    """Ask a server for its model, context and token counts; raise `LoadtestError` if it does not answer."""
    endpoint = Endpoint(url.rstrip("/").removesuffix("/v1"))
    model, context = endpoint.model()
    counted = endpoint.count_tokens(["word"]) is not None

    def count(texts: Sequence[str]) -> list[int]:
        found = endpoint.count_tokens(texts) if counted else None
        return estimate(texts) if found is None else found

    template = endpoint.template_tokens() if counted else None
    return Served(endpoint, model, context or _DEFAULT_CONTEXT, template or 0, Library(prompts, count), counted)


@dataclass(frozen=True)
class Workload:
    """What is asked of a server.

    Attributes
    ----------
    trace : Trace
        Not yet fitted to it.
    fit : Fit
        Scales and bounds; the context is the server's unless it is given.
    settings : AskSettings
    plan : Plan
    slo : Slo
    mix : dict or None
        Weights of the categories.
    warm_up : int
        Short questions that are asked first.
    flush : bool
        Empty the prefix cache after that.
    max_failed : float
        Share of the requests that may fail, in [0, 1]; a run in which more do is not what it claims to be.
    max_send_lag_s : float
        The run is not the trace's if the 99th percentile of the send lag is above this.
    seed : int
        Of the text.
    """

    trace: Trace
    fit: Fit = Fit()
    settings: AskSettings = AskSettings()
    plan: Plan = Plan()
    slo: Slo = Slo()
    mix: dict[str, float] | None = None
    warm_up: int = 4
    flush: bool = True
    max_failed: float = 0.0
    max_send_lag_s: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """A run and everything that a report says about it.

    Attributes
    ----------
    outcome : Outcome
    trace : Trace
        As it was asked, fitted to the server.
    summary : dict
        See `dspark_loadtest.stats`, with ``reconciliation``, ``prompts`` and ``problems`` added.
    """

    outcome: Outcome
    trace: Trace
    summary: dict[str, Any]


def measure(served: Served, workload: Workload, *, show: bool = True) -> Measured:
    """Run a workload against a server.

    Returns
    -------
    Measured
        Also of a run that was broken off by Ctrl-C.

    Raises
    ------
    LoadtestError
        If the trace cannot be replayed as planned, or no question of the warm-up is answered.
    """
    trace = fitted(served, workload)
    composer = composer_of(served, workload, trace)
    settings = workload.settings
    if any(request.session_id is not None and not request.hash_ids for request in trace.requests):
        # The next turn goes on from what was answered.
        settings = replace(settings, keep_text=True)
    started = time.time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome, before, unflushed = runner.run(
            _run(served, replace(workload, settings=settings), trace, composer, show=show)
        )
    after = read_settled(served.endpoint, before, outcome.records)
    summary = summarise(outcome, workload.slo)
    summary["started"] = started
    summary["model"] = served.model
    summary["interrupted"] = outcome.interrupted
    summary["prefix_cache"] = "left as it was" if not workload.flush else unflushed or EMPTIED
    summary["reconciliation"] = reconcile(before, after, outcome.records)
    summary["prompts"] = _prompt_lengths(served, trace, outcome)
    summary["problems"] = problems(summary, workload)
    return Measured(outcome, trace, summary)


def fitted(served: Served, workload: Workload) -> Trace:
    """Return the trace with lengths that fit the server."""
    fit = workload.fit
    return fit_lengths(
        workload.trace, replace(fit, context=fit.context or served.context, overhead=fit.overhead or served.template)
    )


def composer_of(served: Served, workload: Workload, trace: Trace) -> Composer:
    """Return what makes the prompts of a fitted trace."""
    return Composer(served.texts, trace.block_size, seed=workload.seed, mix=workload.mix)


async def _run(served: Served, workload: Workload, trace: Trace, composer: Composer, *, show: bool) -> Any:
    progress = Progress(_expected(trace, workload.plan)) if show else None
    on_tokens = progress.add_tokens if progress else None
    client = ChatClient(served.endpoint.url, served.model, workload.settings, time.perf_counter, None)
    try:
        if workload.warm_up:
            asked = [TraceRequest(input_length=32, output_length=WARM_UP_TOKENS)] * workload.warm_up
            answered = await warm_up(client, composer, asked, workload.plan.concurrency or workload.warm_up)
            if not answered:
                raise LoadtestError(f"{served.endpoint.url} answered no question of the warm-up; look at its log")
        unflushed = await asyncio.to_thread(_flush, served.endpoint) if workload.flush else ""
        before = await asyncio.to_thread(read_counts, served.endpoint)
        client.on_tokens = on_tokens
        outcome = await Replay(client, trace, composer, workload.plan, progress).run()
    finally:
        await client.close()
    return outcome, before, unflushed


def _flush(endpoint: Endpoint) -> str:
    """Empty the prefix cache; return why that failed, or nothing."""
    try:
        endpoint.flush_cache()
    except LoadtestError as error:
        return f"not emptied: {error}"
    return ""


def _expected(trace: Trace, plan: Plan) -> int | None:
    if plan.cycle:
        return plan.max_requests
    if plan.open_loop and plan.duration_s is not None:
        late = 1e3 * plan.speed * plan.duration_s
        return sum((request.timestamp or 0.0) <= late for request in trace.requests)
    return min(len(trace), plan.max_requests or len(trace))


def _prompt_lengths(served: Served, trace: Trace, outcome: Outcome) -> dict[str, Any]:
    pairs = [(r.prompt_tokens, r.asked_input) for r in outcome.records if r.ok and r.asked_input and not r.turn]
    wanted = sum(asked + served.template for _, asked in pairs)
    return {
        "counted_by": "the server's tokenizer" if served.counted else "estimate of 4.2 characters per token",
        "template_tokens": served.template,
        "tokens_over_wanted": sum(found for found, _ in pairs) / wanted if wanted else None,
        "block_size": trace.block_size,
    }


def problems(summary: dict[str, Any], workload: Workload) -> list[str]:
    """Return sentences about what makes a run less than it claims to be; none if it is what it says."""
    found = []
    lag = summary["send_lag_s"]
    if workload.plan.open_loop and lag is not None and lag["p99"] > workload.max_send_lag_s:
        found.append(
            f"The 99th percentile of the send lag is {1e3 * lag['p99']:.0f} ms, above the bound of "
            f"{1e3 * workload.max_send_lag_s:.0f} ms: this client could not send the trace on time; lower the speed "
            "or give it a core of its own."
        )
    requests = summary["requests"]
    asked = sum(requests["outcomes"].values())
    if requests["failed"] > workload.max_failed * asked:
        kinds = (f"{n} {kind}" for kind, n in requests["outcomes"].items() if kind not in UNBROKEN)
        found.append(
            f"{requests['failed']} of {asked} requests failed ({', '.join(kinds)}), above the bound of "
            f"{workload.max_failed:.1%}: the figures are not those of the load that was asked for."
        )
    if workload.flush and summary["prefix_cache"] != EMPTIED:
        found.append(
            f"The prefix cache was {summary['prefix_cache']}; what was asked before may have shortened prefill "
            "(--no-flush leaves the cache as it is on purpose)."
        )
    for name, count in summary["accounting"].items():
        if count and name not in FAULTLESS:
            found.append(f"Tokens do not add up in {count} requests: {name.replace('_', ' ')}.")
    for kind in ("completion", "prompt"):
        side = summary["reconciliation"].get(kind)
        if side is not None and not side["agrees"]:
            found.append(
                f"The server counted {side['server']:.0f} {kind} tokens, the client {side['answered']} in "
                "answers: they do not agree; did anybody else use the server?"
            )
    if not requests["ok"]:
        found.append("No request was answered.")
    return found
