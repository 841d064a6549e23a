"""``selfcheck``: how exact this client is on this machine, measured on a server that does what is known."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from dspark_loadtest import options
from dspark_loadtest.commands.replay import plain
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.mock.script import Script
from dspark_loadtest.mock.server import MockServer
from dspark_loadtest.report.document import Table
from dspark_loadtest.session import Measured, Workload, look_at, measure
from dspark_loadtest.stats import under_way
from dspark_loadtest.traces.synthetic import Phase, generate
from sgl_dspark.server_process import on_cores
from sgl_dspark.simulator.arrivals import Lengths

_TOKENS = 64
_SCRIPT = Script(ttft_s=0.5, tpot_s=0.04, tokens_per_chunk=(1, 2, 3, 4), gamma=7)
# What the measuring may add to what was scripted.
_TOLERANCE, _MAX_LAG_S = 0.02, 0.020
_START_S = 30


def add(actions: Any) -> None:
    """Declare the action."""
    summary = "measure this client's own error on a mock server: TTFT, TPOT, tok/s/user, send lag"
    parser = options.add_action(actions, "selfcheck", summary, run)
    parser.add_argument("--streams", type=options.count, default=500, metavar="N", help="at a time (default: 500)")
    parser.add_argument("--duration", type=options.positive, default=30.0, metavar="S", help="default: 30")
    parser.add_argument("--json", action="store_true", help="print everything that was measured")


def run(args: Namespace) -> int:
    """Measure; 0 if every figure is within 2 % of the script and the send lag's 99th percentile below 20 ms."""
    answer_s = _SCRIPT.chunks(_TOKENS)[-1][0]
    rate = args.streams / answer_s
    trace = generate([Phase(args.duration, rate)], Lengths(32, _TOKENS, 0.3, 0.0))
    cores = sorted(os.sched_getaffinity(0))
    client, server = (frozenset([cores[-1]]), frozenset(cores[:-1])) if len(cores) > 1 else (None, None)
    with _mock(_SCRIPT, server) as url, on_cores(client):
        workload = Workload(trace, warm_up=8, max_send_lag_s=math.inf)
        measured = measure(look_at(url, []), workload, show=sys.stderr.isatty())
    rows, good = judge(measured, _SCRIPT)
    if args.json:
        print(json.dumps(measured.summary, indent=1))
    print(plain(Table(("figure", "scripted", "measured", "error", "within"), rows)))
    print(
        f"load average {os.getloadavg()[0]:.2f}; client {'on one core' if client else 'beside the server on one core'}"
    )
    return 0 if good else 1


def judge(measured: Measured, script: Script) -> tuple[list[tuple[str, ...]], bool]:
    """Compare what was measured with the script; returns rows of a table, and whether all is within bounds."""
    summary = measured.summary
    known = {
        "TTFT, p50, s": (script.ttft_s, summary["ttft_s"]["p50"]),
        "TTFT, mean, s": (script.ttft_s, summary["ttft_s"]["mean"]),
        "TPOT, p50, s": (script.tpot_s, summary["tpot_s"]["p50"]),
        "TPOT, mean, s": (script.tpot_s, summary["tpot_s"]["mean"]),
        "tok/s of a user, p50": (1 / script.tpot_s, summary["tok_s_user"]["p50"]),
        "tok/s of a user, mean": (1 / script.tpot_s, summary["tok_s_user"]["mean"]),
    }
    rows: list[tuple[str, ...]] = []
    good = True
    for name, (scripted, found) in known.items():
        error = found / scripted - 1
        within = abs(error) <= _TOLERANCE
        good &= within
        rows.append((name, f"{scripted:.4g}", f"{found:.4g}", f"{100 * error:+.2f} %", "yes" if within else "NO"))
    lag = summary["send_lag_s"]["p99"]
    rows.append(("send lag, p99, ms", "0", f"{1e3 * lag:.1f}", "", "yes" if lag < _MAX_LAG_S else "NO"))
    # Once the first answers end, as many end as begin.
    filled = under_way(measured.outcome.records, script.chunks(_TOKENS)[-1][0], summary["steady_s"][1])
    rows.append(("streams at a time, once filled", "", "-" if filled is None else f"{filled:.0f}", "", ""))
    rows.append(("client's share of a core", "", f"{100 * summary['client']['cpu_share']:.0f} %", "", ""))
    complete = not summary["problems"] and summary["requests"]["ok"] == summary["requests"]["sent"]
    rows.append(("all answered, tokens agree", "", "yes" if complete else "NO", "", "yes" if complete else "NO"))
    return rows, bool(good and complete and lag < _MAX_LAG_S)


@contextmanager
def _mock(script: Script, cores: frozenset[int] | None) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(script, cores, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(_START_S):
            raise LoadtestError(f"the mock server was not ready after {_START_S} s; is the machine overloaded?")
        yield ours.recv()
    finally:
        ours.send("stop")
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(script: Script, cores: frozenset[int] | None, pipe: Connection) -> None:
    import asyncio

    import uvloop

    async def serve() -> None:
        server = MockServer(script)
        await server.start()
        pipe.send(server.url)
        await asyncio.to_thread(pipe.recv)
        await server.stop()

    with on_cores(cores), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
