"""``pareto``: a sweep over load with several arms, and its frontier; ``report``: the same from a file."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark_loadtest import options
from dspark_loadtest.commands.replay import EXIT_FAILED, EXIT_INTERRUPTED
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.pareto import METRICS, SCHEMA, summarise_sweep
from dspark_loadtest.plan import Plan
from dspark_loadtest.report.machine import describe_client
from dspark_loadtest.report.pareto import write_pareto
from dspark_loadtest.session import Workload
from dspark_loadtest.stats import Slo
from dspark_loadtest.sweep import DSPARK, Run, Sweep, run_sweep
from dspark_loadtest.traces.fit import Fit
from dspark_loadtest.traces.request import Trace
from sgl_dspark.comparison import DSPARK_ONLY, Policy, parse_policies, without_flags
from sgl_dspark.cores import Cores, has_gpu, model_threads, plan_cores, usable_cores
from sgl_dspark.server_process import PLAIN, Arm, ServerArm, UrlArm, on_cores


def _arms(text: str) -> list[Policy]:
    """Read ``plain,static:2,adaptive``; ``plain`` is the server without DSpark, the others its policies."""
    names = [part.strip() for part in text.split(",")]
    rest = [name for name in names if name != PLAIN]
    try:
        policies = parse_policies(",".join(rest)) if rest else []
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return [Policy(PLAIN, {})] * (PLAIN in names) + policies


def add(actions: Any) -> None:
    """Declare both actions."""
    summary = "sweep the load with and without DSpark, in alternation, and draw throughput against tok/s of a user"
    parser = options.add_action(actions, "pareto", summary, run)
    what = parser.add_argument_group("arms")
    what.add_argument(
        "--arms",
        type=_arms,
        default=_arms("plain,static:2,static:4,adaptive"),
        metavar="LIST",
        help="plain, and policies of the DSpark server (default: plain,static:2,static:4,adaptive)",
    )
    what.add_argument(
        "--url", action="append", default=[], metavar="NAME=URL", help="servers that run: plain=, dspark=, others"
    )
    what.add_argument("--pin", default="auto", metavar="SERVER:CLIENT", help="cores such as 0:1, or auto, or none")
    what.add_argument("--devices", type=options.count, default=1, metavar="N", help="that a server uses (default: 1)")
    what.add_argument("--startup-timeout", type=options.positive, default=900.0, metavar="S", help="default: 900")
    what.add_argument(
        "server_flags", nargs="*", metavar="-- FLAGS", help="of dspark serve, for all that are started here"
    )
    load = parser.add_argument_group("loads")
    load.add_argument("--concurrency", type=options.counts, default=[1, 2, 4, 8, 16], metavar="LIST", help="1,2,4,8,16")
    load.add_argument("--rates", type=options.numbers, metavar="LIST", help="requests a second instead, Poisson")
    load.add_argument("--repeats", type=options.count, default=4, metavar="N", help="turns of each server, even (4)")
    load.add_argument("--requests", type=options.count, default=16, metavar="N", help="of a run at least (default: 16)")
    load.add_argument("--waves", type=options.count, default=4, metavar="N", help="requests per client at least (4)")
    load.add_argument("--duration", type=options.positive, default=60.0, metavar="S", help="of a run with --rates (60)")
    load.add_argument("--anchors", type=options.numbers, default=[], metavar="LIST", help="tok/s of a user to read at")
    options.add_trace(parser, required=False)
    options.add_asking(parser)
    parser.add_argument("--out", type=Path, default=Path("runs/pareto"), metavar="DIR", help="default: runs/pareto")
    parser.add_argument("--quiet", action="store_true", help="no progress of single runs")

    again = options.add_action(actions, "report", "write the report of a sweep again from its pareto.json", run_again)
    again.add_argument("file", type=Path)
    again.add_argument("--out", type=Path, metavar="DIR", help="default: beside the file")


def run(args: Namespace) -> int:
    """Measure and report; 0, 1 if a run has a problem, 130 after Ctrl-C with what was measured until then."""
    trace = options.trace_of(args)
    workload = Workload(
        trace,
        fit=Fit(args.prompt_scale, args.output_scale, args.context, args.max_output),
        settings=options.settings_of(args),
        plan=Plan(seed=args.seed),
        slo=Slo(args.slo_ttft, args.slo_tok_s),
        mix=args.mix,
        warm_up=args.warm_up,
        flush=not args.no_flush,
        max_failed=args.max_failed,
        seed=args.seed,
    )
    policies = [policy for policy in args.arms if policy.name != PLAIN]
    sweep = Sweep(
        workload,
        loads=args.rates or args.concurrency,
        by_rate=args.rates is not None,
        repeats=args.repeats,
        requests=args.requests,
        waves=args.waves,
        duration_s=args.duration,
        policies=policies,
        prompts=args.prompts,
    )
    cores = plan_pinning(args)
    servers = make_arms(args, cores)
    args.out.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    complete, sent = False, None
    try:
        with on_cores(cores.client):
            sent = run_sweep(servers, sweep, runs, log=options.say, show=not args.quiet and sys.stderr.isatty())
        complete = True
    except KeyboardInterrupt:
        options.say("broken off; every server that was started has been ended")
    finally:
        if runs:
            data = _data(runs, args, sweep, servers, sent or trace)
            page = write_pareto({**data, "complete": complete, "pinning": str(cores)}, args.out)
            print(f"report: {page}")
    if not complete:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if any(run.measured["problems"] for run in runs) else 0


def plan_pinning(args: Namespace) -> Cores:
    """Divide the cores between the servers that are started here and this client, as ``dspark bench`` does."""
    if args.url and args.pin == "auto":
        return Cores(None, None, "the servers run already")
    return plan_cores(args.pin, usable_cores(), threads=model_threads(), gpu=has_gpu())


def make_arms(args: Namespace, cores: Cores) -> list[Arm]:
    """Return the servers that take turns: those at URLs, or a plain and a DSpark one that are started here."""
    plain = any(policy.name == PLAIN for policy in args.arms)
    policies = any(policy.name != PLAIN for policy in args.arms)
    arms: list[Arm] = []
    for given in args.url:
        name, _, url = given.partition("=")
        if not name or not url.startswith(("http://", "https://")):
            raise LoadtestError(f"--url takes NAME=URL such as plain=http://127.0.0.1:30000, not {given!r}")
        if name in (arm.name for arm in arms):
            raise LoadtestError(f"--url names {name!r} twice; give each server its own name")
        arms.append(UrlArm(name, url.rstrip("/").removesuffix("/v1")))
    if arms:
        if args.server_flags:
            raise LoadtestError("flags after -- are for servers that are started here; leave them or --url out")
        if policies and DSPARK not in (arm.name for arm in arms):
            options.say(f"no {DSPARK}=URL is given: servers are measured as they are, policies are not compared")
        return arms
    logs = args.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_NUM_THREADS": str(model_threads())}
    commands = {
        PLAIN: [*options.SERVE, "--plain", "--enable-metrics", *without_flags(args.server_flags, DSPARK_ONLY)],
        DSPARK: [*options.SERVE, "--enable-metrics", *args.server_flags],
    }
    wanted = [PLAIN] * plain + [DSPARK] * policies
    return [
        ServerArm(
            name, commands[name], logs, cores=cores.server, environment=environment, startup_s=args.startup_timeout
        )
        for name in wanted
    ]


def _data(runs: Sequence[Run], args: Namespace, sweep: Sweep, servers: Sequence[Arm], trace: Trace) -> dict[str, Any]:
    baseline = PLAIN if any(run.arm == PLAIN for run in runs) else runs[0].arm
    singles = [
        {
            **{name: pick(run.measured) for name, pick in METRICS.items()},
            **{"repeat": run.repeat, "turn": run.turn, "arm": run.arm, "load": run.load},
            "started": run.measured["started"],
            "requests": run.measured["requests"],
            "reconciliation": run.measured["reconciliation"],
            "prefix_cache": run.measured["prefix_cache"],
            "problems": run.measured["problems"],
        }
        for run in runs
    ]
    plan = {"loads": list(sweep.loads), "repeats": sweep.repeats, "requests": sweep.requests, "waves": sweep.waves}
    switched = any(arm.name == DSPARK for arm in servers)
    categories: Counter[str] = Counter()
    for run in runs:
        categories.update({name: found["requests"] for name, found in run.measured["categories"].items()})
    commands = {
        arm.name: list(arm.command) if isinstance(arm, ServerArm) else getattr(arm, "url", "") for arm in servers
    }
    return {
        "schema": SCHEMA,
        "by": "requests a second" if sweep.by_rate else "concurrent requests",
        "plan": {**plan, "duration_s": sweep.duration_s if sweep.by_rate else None, "seed": sweep.workload.seed},
        "policies": [policy.name for policy in sweep.policies] if switched else [],
        "request": asdict(sweep.workload.settings),
        "fit": asdict(sweep.workload.fit),
        "mix": sweep.workload.mix,
        "prompts": [path.name for path in args.prompts],
        "categories": dict(categories),
        "server": {"model": runs[0].measured["model"], "commands": commands},
        "client": describe_client(),
        "trace": trace.source,
        "summary": summarise_sweep(runs, args.anchors, baseline=baseline, devices=args.devices),
        "runs": singles,
    }


def run_again(args: Namespace) -> int:
    """Read a sweep's JSON and write its report again; returns 0."""
    try:
        data = json.loads(args.file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadtestError(f"{args.file}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise LoadtestError(f"{args.file}: is no {SCHEMA}; give the pareto.json of dspark loadtest pareto")
    print(f"report: {write_pareto(data, args.out or args.file.parent)}")
    return 0
