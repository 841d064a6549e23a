"""Whether what a scenario promises held: one sentence and a verdict for each expectation."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from dspark_loadtest.client import ChatClient
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.record import RequestRecord
from dspark_loadtest.scenario import Scenario
from dspark_loadtest.session import Measured, Served, Workload, composer_of

_REFUSED = ("http_429", "http_503", "stream_429", "stream_503")


@dataclass(frozen=True)
class Check:
    """One expectation.

    Attributes
    ----------
    name, wanted, found : str
    holds : bool
    """

    name: str
    wanted: str
    found: str
    holds: bool


def check(
    scenario: Scenario, served: Served, workload: Workload, measured: Measured, capacity: dict[str, Any] | None
) -> list[Check]:
    """Judge a run; asks the server again where the scenario wants that.

    Parameters
    ----------
    scenario : Scenario
    served, workload, measured
        The run.
    capacity : dict or None
        Summary of the closed loop that measured capacity.
    """
    expect, summary, records = scenario.expect, measured.summary, measured.outcome.records
    made: list[Check] = []
    failed = [record for record in records if record.failed]
    if expect.all_answered:
        made.append(Check("all answered", "0 failed", _kinds(failed), not failed))
    if expect.only_refused:
        odd = [r for r in failed if r.outcome not in _REFUSED or r.first is not None]
        made.append(Check("failures are refusals", "429 or 503, before any token", _kinds(failed), not odd))
    if expect.tokens_agree:
        made.append(_tokens(summary))
    if expect.server_idle:
        made.append(_idle(served))
    if expect.recovery_s is not None:
        made.append(_recovery(scenario, records))
    if expect.goodput_share is not None:
        share = summary["goodput"]["share"] or 0.0
        made.append(_least("goodput", expect.goodput_share, share))
    if capacity is not None:
        if capacity["problems"]:
            made.append(Check("capacity measured", "no problem", capacity["problems"][0], False))
        made += _shares(scenario, summary, capacity)
    if expect.same_when_asked_alone:
        made.append(_same(served, workload, measured, expect.same_when_asked_alone))
    lag = summary["send_lag_s"]
    late = lag is not None and lag["p99"] > workload.max_send_lag_s
    shown = "-" if lag is None else f"{1e3 * lag['p99']:.0f} ms"
    made.append(Check("sent on time, p99", f"within {1e3 * workload.max_send_lag_s:.0f} ms", shown, not late))
    return made


def _kinds(records: Sequence[RequestRecord]) -> str:
    kinds = sorted({record.outcome for record in records})
    return ", ".join(f"{sum(r.outcome == kind for r in records)} {kind}" for kind in kinds) or "0 failed"


def _least(name: str, wanted: float, found: float) -> Check:
    return Check(name, f"{wanted:.3g} at least", f"{found:.3g}", found >= wanted)


def _shares(scenario: Scenario, summary: dict[str, Any], capacity: dict[str, Any]) -> list[Check]:
    expect, made = scenario.expect, []
    if expect.tok_s_user_p10_of_capacity is not None:
        mine, full = summary["tok_s_user"], capacity["tok_s_user"]
        found = mine["p10"] / full["p50"] if mine and full else 0.0
        made.append(_least("tok/s of nine in ten users, of capacity", expect.tok_s_user_p10_of_capacity, found))
    if expect.throughput_of_capacity is not None:
        found = (summary["output_tok_s"] or 0.0) / capacity["output_tok_s"] if capacity["output_tok_s"] else 0.0
        made.append(_least("output tok/s, of capacity", expect.throughput_of_capacity, found))
    return made


def _tokens(summary: dict[str, Any]) -> Check:
    """Tokens of each stream, and of both sides in total; a server without counters cannot be compared with."""
    found = summary["reconciliation"]
    if not found["available"]:
        return Check("tokens agree", "client and server", "the server exports no counters (--enable-metrics)", False)
    lost = {n: c for n, c in summary["accounting"].items() if c and not n.startswith(("tokens_without", "without_"))}
    side = found["completion"]
    client = str(side["client_least"])
    if side["client_most"] != side["client_least"]:
        client += f" to {side['client_most']}"
    if "worker_least" in side:
        client += f", worker {side['worker_least']:.0f} to {side['worker_most']:.0f}"
    text = f"client {client}, server {side['server']:.0f}" + (f"; {lost}" if lost else "")
    sides = side["agrees"] and found["prompt"]["agrees"]
    return Check("tokens agree", "client and server", text, bool(sides and not lost))


def _idle(served: Served, *, settle_s: float = 10.0) -> Check:
    """Nothing is left on the server; a request that was broken off may take some steps to be noticed."""
    wanted = "nothing runs or waits"
    waited = 0.0
    while True:
        try:
            loads = served.endpoint.ask("/v1/loads")["loads"]
            left = [(int(one["num_running_reqs"]), int(one["num_waiting_reqs"])) for one in loads]
        except (LoadtestError, KeyError, TypeError):
            return Check("server idle", wanted, "the server has no /v1/loads to ask", False)
        running, waiting = sum(r for r, _ in left), sum(w for _, w in left)
        if not running + waiting or waited >= settle_s:
            return Check("server idle", wanted, f"{running} running, {waiting} waiting", not running + waiting)
        time.sleep(0.5)
        waited += 0.5


def recovery(records: Sequence[RequestRecord], begin: float, end: float, factor: float) -> float | None:
    """Return the seconds from ``end`` until TTFT stays below ``factor`` times its median before ``begin``.

    A request without a first token counts as above. None if nothing was answered before ``begin``, or if the last
    request of the run is still above.
    """
    before = [r.ttft_due_s for r in records if r.due < begin and r.ttft_due_s is not None]
    after = sorted((r for r in records if r.due >= end), key=lambda r: r.due)
    if not before or not after:
        return None
    limit = factor * statistics.median(before)
    slow = [i for i, r in enumerate(after) if r.ttft_due_s is None or r.ttft_due_s > limit]
    if not slow:
        return 0.0
    if slow[-1] == len(after) - 1:
        return None
    return after[slow[-1] + 1].due - end


def _recovery(scenario: Scenario, records: Sequence[RequestRecord]) -> Check:
    begin, end = scenario.peak()
    wanted = scenario.expect.recovery_s or 0.0
    found = recovery(records, begin, end, scenario.expect.recovery_factor)
    shown = "never within the run" if found is None else f"{found:.1f} s"
    return Check("recovery after the peak", f"within {wanted:g} s", shown, found is not None and found <= wanted)


def _same(served: Served, workload: Workload, measured: Measured, count: int) -> Check:
    """Ask some of the answered requests again, one at a time, and compare the text."""
    done = [r for r in measured.outcome.records if r.ok and r.text]
    chosen = done[:: max(1, len(done) // count)][:count]
    same = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with same as runner:
        texts = runner.run(_again(served, workload, measured, chosen))
    equal = sum(text == record.text for text, record in zip(texts, chosen, strict=True))
    shown = f"{equal} of {len(chosen)}"
    return Check("same text when asked alone", f"{count}", shown, bool(chosen) and equal == len(chosen))


async def _again(served: Served, workload: Workload, measured: Measured, chosen: Sequence[RequestRecord]) -> list[str]:
    composer = composer_of(served, workload, measured.trace)
    client = ChatClient(served.endpoint.url, served.model, workload.settings, time.perf_counter)
    texts = []
    try:
        for record in chosen:
            request = measured.trace.requests[record.index]
            messages = [{"role": "user", "content": composer.compose(request, record.index)}]
            fresh = RequestRecord(record.index)
            await client.ask(client.body(messages, request.output_length, request.extra), fresh)
            texts.append(fresh.text)
    finally:
        await client.close()
    return texts
