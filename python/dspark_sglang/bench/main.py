"""What ``dspark bench`` does with its options: set up, run, report, also when it is broken off."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_sglang.bench import BenchError, arms, machine, plot, policy_report, report
from dspark_sglang.bench.client import RequestSettings
from dspark_sglang.bench.session import Plan, Run, run_session
from sgl_dspark.cores import Cores, has_gpu, model_threads, plan_cores, usable_cores
from sgl_dspark.data.prompt_set import load_prompts, order_prompts, prompts_hash
from sgl_dspark.errors import DsparkError
from sgl_dspark.server_process import PLAIN, Arm, ServerArm, UrlArm, on_cores

EXIT_INTERRUPTED = 130
# `dspark bench planner` and `dspark bench metrics` serve nothing: they time the planner and the recorder of metrics.
PLANNER, METRICS = "planner", "metrics"


@dataclass(frozen=True)
class Setup:
    """Everything that is settled before the first server starts.

    Attributes
    ----------
    arms : list of Arm
        The baseline first.
    plan : Plan
    cores : Cores
    header : dict
        What the JSON says besides the figures.
    """

    arms: list[Arm]
    plan: Plan
    cores: Cores
    header: dict[str, Any]


def run(args: Namespace) -> int:
    """Measure and report.

    Returns
    -------
    int
        0 when complete, 130 after Ctrl-C or SIGTERM.

    Raises
    ------
    DsparkError
        If the options do not fit, a server dies or a request fails; what was measured before is reported first.
    """
    if args.server_flags in ([PLANNER], [METRICS]):
        from dspark_sglang.bench import planner, recording

        check_folders(args)
        return planner.run(args) if args.server_flags == [PLANNER] else recording.run(args)
    check_options(args)
    folder = args.logs or Path(tempfile.mkdtemp(prefix="dspark-bench-"))
    runs: list[Run] = []
    keep_logs = args.logs is not None
    try:
        setup = set_up(args, folder)
        status = _measure(setup, runs, args)
    except DsparkError:
        # The message names a log there.
        keep_logs = keep_logs or any(folder.iterdir())
        raise
    finally:
        if not keep_logs:
            shutil.rmtree(folder, ignore_errors=True)
    return status


def check_options(args: Namespace) -> None:
    """Raise `BenchError` for options that exclude each other or that name what is not there."""
    if args.server_flags and not args.server_flags[0].startswith("--"):
        raise BenchError(f"unexpected argument {args.server_flags[0]!r}; flags of the server go after --")
    if args.url and (args.target or args.draft or args.server_flags):
        raise BenchError("--url measures servers that run already; leave out --target, --draft and the flags after --")
    check_policies(args)
    check_folders(args)
    if args.plot is not None:
        plot.check_plot(args.plot)


def check_folders(args: Namespace) -> None:
    """Raise `BenchError` for an option that names a folder that is not there."""
    files = (("--json", args.json), ("--plot", args.plot))
    for option, folder in (*((o, f.parent if f else None) for o, f in files), ("--logs", args.logs)):
        if folder is not None and not folder.is_dir():
            raise BenchError(f"there is no folder {folder} for {option}; make it first")


def check_policies(args: Namespace) -> None:
    """Raise `BenchError` where policies meet servers that they cannot be compared on."""
    if args.no_plain and not args.policies:
        raise BenchError("--no-plain leaves nothing to compare with; give --policies as well")
    if args.metrics_overhead and (args.url or args.policies):
        raise BenchError("--metrics-overhead starts both servers itself; leave out --url and --policies")
    others = [specification for specification in args.url if not specification.startswith(f"{PLAIN}=")]
    if args.policies and args.url and len(others) != 1:
        raise BenchError(f"--policies are compared on one server; give one --url besides {PLAIN}=URL")


def set_up(args: Namespace, folder: Path) -> Setup:
    """Read the prompts, find the models and compose the arms; starts nothing.

    Parameters
    ----------
    args : Namespace
        Options of ``dspark bench``.
    folder : Path
        Where servers write their logs.
    """
    prompts = order_prompts(load_prompts(args.prompts, args.category), args.seed)
    # Cores of a server that runs already are not ours to choose.
    pin = "none" if args.url and args.pin == "auto" else args.pin
    cores = plan_cores(pin, usable_cores(), threads=model_threads(), gpu=has_gpu())
    asked = args.max_tokens, args.temperature, args.ignore_eos, args.timeout, args.body, args.length_spread
    settings = RequestSettings(*asked)
    plan = Plan(prompts, args.concurrency, args.rounds, args.requests, settings, args.policies, args.waves)
    pair = None if args.url else arms.find_pair(args)
    if pair is None:
        chosen = arms.url_arms(args.url)
    else:
        options = {"startup_s": args.startup_timeout, "metrics_overhead": args.metrics_overhead}
        chosen = arms.server_arms(args.server_flags, pair, cores, folder, **options)
    chosen = [arm for arm in chosen if not (args.no_plain and arm.name == PLAIN)]
    header = {
        "command": ["dspark", *sys.argv[1:]],
        "versions": machine.versions(),
        "machine": machine.describe(),
        "pinning": str(cores),
        "threads": model_threads() if pair else None,
        "models": pair.describe() if pair else None,
        "servers": {arm.name: _describe_arm(arm) for arm in chosen},
        "settings": {
            "concurrency": args.concurrency,
            "rounds": args.rounds,
            "requests": {str(level): plan.count(level) for level in args.concurrency},
            "max_tokens": args.max_tokens,
            "length_spread": args.length_spread,
            "temperature": args.temperature,
            "ignore_eos": args.ignore_eos,
            "body": args.body,
            **({"policies": {policy.name: policy.body for policy in args.policies}} if args.policies else {}),
        },
        "prompts": {
            "source": args.prompts.name if args.prompts else "built-in",
            "count": len(prompts),
            "categories": dict(Counter(p.category for p in prompts)),
            "seed": args.seed,
            "sha256": prompts_hash(prompts),
        },
    }
    return Setup(chosen, plan, cores, header)


def _describe_arm(arm: Arm) -> Any:
    if isinstance(arm, ServerArm):
        return {"command": list(arm.command), "environment": arm.environment}
    return {"url": arm.url} if isinstance(arm, UrlArm) else None


def _measure(setup: Setup, runs: list[Run], args: Namespace) -> int:
    started = _now()
    complete, status = False, 0
    try:
        with on_cores(setup.cores.client), _terminable():
            run_session(setup.arms, setup.plan, runs, log=_log, progress=_progress if sys.stderr.isatty() else None)
        complete = True
    except KeyboardInterrupt:
        _log("interrupted; every server that was started has been ended")
        status = EXIT_INTERRUPTED
    finally:
        header = {"complete": complete, "started": started, "finished": _now(), **setup.header}
        names = [name for arm in setup.arms for name in _names(arm, setup.plan)]
        _report(runs, names, header, args)
    return status


def _names(arm: Arm, plan: Plan) -> list[str]:
    return [policy.name for policy in plan.policies] if plan.policies and arm.name != PLAIN else [arm.name]


def _report(runs: Sequence[Run], names: Sequence[str], header: dict[str, Any], args: Namespace) -> None:
    summarise = policy_report.summarise_policies if args.policies else report.summarise
    summary, notes = summarise(runs, names), report.notes(header)
    same_text = args.temperature == 0
    if args.policies:
        table, notes = policy_report.policy_rows(summary, names, same_text=same_text), [*notes, policy_report.NOTE]
    else:
        table = report.rows(summary, names, same_text=same_text)
    if args.json is not None:
        data = report.to_json(runs, names, header, summary)
        if args.policies:
            data["definitions"] |= policy_report.DEFINITIONS
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if not runs:
        _log("nothing was measured")
        return
    if args.plot is not None:
        plot.draw(summary, names, args.plot)
    layout = report.markdown(table) if args.markdown else report.aligned(table)
    sys.stdout.write("\n".join(["", layout, "", *notes, ""]))
    sys.stdout.flush()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, and Ctrl-C as itself, so that servers are ended then too."""
    before_term = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    # A shell starts its background jobs with SIGINT ignored, and Python then leaves it so.
    before_int = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before_term)
        signal.signal(signal.SIGINT, before_int)


def _log(line: str) -> None:
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()


def _progress(wanted: int, done: int) -> None:
    # Wiped when complete: the line of the run's figures takes its place.
    sys.stderr.write(f"\r  {done}/{wanted} answers" if done < wanted else "\r" + " " * 30 + "\r")
    sys.stderr.flush()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
