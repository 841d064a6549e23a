"""Options that several actions share, and what they make of them."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from dspark_loadtest.client import AskSettings
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.plan import Leaving, Plan
from dspark_loadtest.session import Workload
from dspark_loadtest.stats import Slo
from dspark_loadtest.traces.canonical import FORMATS, load_trace
from dspark_loadtest.traces.fit import Fit, cut_out, spread, thin
from dspark_loadtest.traces.request import Trace
from dspark_loadtest.traces.servegen import load_servegen
from sgl_dspark.server_process import ServerArm, UrlArm

BUILT_IN = {"azure-conv": "azure_conv_2023_10min.csv.gz"}
SERVE = (sys.executable, "-m", "sgl_dspark.cli", "serve")


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def counts(text: str) -> list[int]:
    """Read a list such as ``1,4,16``, each number once, in order."""
    return sorted({count(part.strip()) for part in text.split(",")})


def positive(text: str) -> float:
    """Read a number above 0."""
    value = not_negative(text)
    if not value:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def not_negative(text: str) -> float:
    """Read a number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def share(text: str) -> float:
    """Read a number between 0 and 1."""
    value = not_negative(text)
    if value > 1:
        raise ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value


def numbers(text: str) -> list[float]:
    """Read a list of numbers above 0, each once, in order."""
    return sorted({positive(part.strip()) for part in text.split(",")})


def whole(text: str) -> int:
    """Read a whole number of at least 0."""
    if not text.isdigit():
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArgumentTypeError("not a JSON object")
    return value


def mix(text: str) -> dict[str, float]:
    """Read weights such as ``maths=2,code=1``."""
    found = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        found[name] = not_negative(weight or "1")
    return found


def add_action(actions: Any, name: str, summary: str, run: Callable[[Namespace], int]) -> ArgumentParser:
    """Declare one action of the command."""
    description = f"{summary[0].upper()}{summary[1:]}."
    parser: ArgumentParser = actions.add_parser(name, help=summary, description=description, allow_abbrev=False)
    parser.set_defaults(action=run)
    return parser


def add_server(parser: ArgumentParser) -> None:
    """Declare which server is asked."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", help="of a running server; without it, dspark serve is started and ended here")
    group.add_argument("--startup-timeout", type=positive, default=900.0, metavar="S", help="default: 900")
    group.add_argument("server_flags", nargs="*", metavar="-- FLAGS", help="of dspark serve, when it is started here")


def add_trace(parser: ArgumentParser, *, required: bool = True) -> None:
    """Declare which trace is replayed, and how it is fitted."""
    group = parser.add_argument_group("trace")
    group.add_argument(
        "--trace",
        required=required,
        default=None if required else "azure-conv",
        metavar="FILE",
        help="in any format that dspark loadtest convert reads, a folder of ServeGen, or azure-conv, which is built in",
    )
    group.add_argument("--format", choices=FORMATS, help="default: what its first line looks like")
    group.add_argument("--block-size", type=count, metavar="TOK", help="of a hash id (default: what lengths agree on)")
    group.add_argument(
        "--from", dest="start_s", type=not_negative, default=0.0, metavar="S", help="of the trace's time"
    )
    group.add_argument("--take", type=positive, metavar="S", help="of the trace's time (default: all)")
    group.add_argument("--limit", type=count, metavar="N", help="requests of the trace at most")
    group.add_argument("--keep", type=positive, default=1.0, metavar="SHARE", help="of its requests, drawn by --seed")
    group.add_argument("--prompt-scale", type=positive, default=1.0, metavar="F", help="multiplies prompt lengths")
    group.add_argument("--output-scale", type=positive, default=1.0, metavar="F", help="multiplies answer lengths")
    group.add_argument("--context", type=count, metavar="TOK", help="prompt and answer (default: what the server says)")
    group.add_argument("--max-output", type=count, metavar="TOK", help="longest answer")
    group.add_argument("--seed", type=whole, default=0, metavar="N", help="of all draws and of the text (default: 0)")


def add_asking(parser: ArgumentParser) -> None:
    """Declare what every request asks and what users are owed."""
    group = parser.add_argument_group("requests")
    group.add_argument("--temperature", type=not_negative, default=0.0, metavar="T", help="default: 0, greedy")
    group.add_argument(
        "--natural-stop", action="store_true", help="let answers end by themselves (default: as long as in the trace)"
    )
    group.add_argument(
        "--prompts", type=Path, action="append", default=[], metavar="PATH", help="JSON lines, or folders of them"
    )
    group.add_argument("--mix", type=mix, metavar="LIST", help="of categories, such as maths=2,code=1 (default: alike)")
    group.add_argument("--body", type=json_object, default={}, metavar="JSON", help="further fields of each request")
    group.add_argument("--timeout", type=positive, default=600.0, metavar="S", help="of a request (default: 600)")
    group.add_argument("--retries", type=whole, default=3, metavar="N", help="after 429 and 503 (default: 3)")
    group.add_argument("--max-failed", type=share, default=0.0, metavar="SHARE", help="of requests (default: 0, none)")
    group.add_argument("--warm-up", type=whole, default=4, metavar="N", help="short questions first (default: 4)")
    group.add_argument("--no-flush", action="store_true", help="leave the prefix cache as it is")
    group.add_argument("--slo-ttft", type=positive, metavar="S", help="longest time to the first token, from when due")
    group.add_argument("--slo-tok-s", type=positive, metavar="RATE", help="least tok/s of a user")


def add_run(parser: ArgumentParser) -> None:
    """Declare how a trace is sent."""
    group = parser.add_argument_group("replay")
    group.add_argument("--speed", type=positive, default=1.0, metavar="F", help="of the trace's clock (default: 1)")
    group.add_argument("--concurrency", type=count, metavar="N", help="closed loop of N clients instead of timestamps")
    group.add_argument("--duration", type=positive, metavar="S", help="send nothing after so many seconds")
    group.add_argument("--max-requests", type=count, metavar="N", help="begin no more conversations than that")
    group.add_argument("--cycle", action="store_true", help="closed loop: begin the trace again when it is used up")
    group.add_argument(
        "--drain", type=positive, default=600.0, metavar="S", help="wait for the last answers, open loop (600)"
    )
    group.add_argument("--leave", type=not_negative, default=0.0, metavar="SHARE", help="of clients that disconnect")
    group.add_argument("--max-send-lag-ms", type=positive, default=500.0, metavar="MS", help="99th percentile (500)")


def trace_of(args: Namespace) -> Trace:
    """Load the trace, cut, thinned and with rounded timestamps spread; lengths are fitted when the server is known."""
    path = Path(args.trace)
    if args.trace in BUILT_IN:
        with resources.as_file(resources.files("dspark_loadtest") / "data" / BUILT_IN[args.trace]) as file:
            trace = load_trace(file)
    elif path.is_dir():
        trace = load_servegen(path, start_s=args.start_s, duration_s=args.take or 600.0, seed=args.seed)
        return thin(trace, args.keep, seed=args.seed)
    else:
        trace = load_trace(path, form=args.format, block_size=args.block_size)
    trace = spread(trace, seed=args.seed)
    trace = cut_out(trace, start_s=args.start_s, duration_s=args.take, limit=args.limit)
    return thin(trace, args.keep, seed=args.seed)


def settings_of(args: Namespace) -> AskSettings:
    """Return what every request asks."""
    return AskSettings(
        temperature=args.temperature,
        ignore_eos=not args.natural_stop,
        timeout_s=args.timeout,
        retries=args.retries,
        extra=args.body,
    )


def workload_of(args: Namespace, trace: Trace) -> Workload:
    """Return the whole of what is asked."""
    return Workload(
        trace,
        fit=Fit(args.prompt_scale, args.output_scale, args.context, args.max_output),
        settings=settings_of(args),
        plan=Plan(
            concurrency=args.concurrency,
            speed=args.speed,
            duration_s=args.duration,
            max_requests=args.max_requests,
            drain_s=args.drain,
            cycle=args.cycle,
            leaving=Leaving(args.leave),
            seed=args.seed,
        ),
        slo=Slo(args.slo_ttft, args.slo_tok_s),
        mix=args.mix,
        warm_up=args.warm_up,
        flush=not args.no_flush,
        max_failed=args.max_failed,
        max_send_lag_s=args.max_send_lag_ms / 1e3,
        seed=args.seed,
    )


@contextlib.contextmanager
def served(args: Namespace, logs: Path) -> Iterator[str]:
    """Yield the URL of the server that is asked; start ``dspark serve`` with metrics if there is none, and end it."""
    if args.url and args.server_flags:
        raise LoadtestError("flags after -- are for a server that is started here; leave them or --url out")
    logs.mkdir(parents=True, exist_ok=True)
    arm: UrlArm | ServerArm
    if args.url:
        arm = UrlArm("server", args.url.rstrip("/").removesuffix("/v1"))
    else:
        command = [*SERVE, "--enable-metrics", *args.server_flags]
        arm = ServerArm("server", command, logs, startup_s=args.startup_timeout)
        say("starting dspark serve; its log is in " + str(logs))
    with arm.open() as url:
        yield url


def say(text: str) -> None:
    """Tell what is going on, on standard error."""
    sys.stderr.write(f"loadtest: {text}\n")
    sys.stderr.flush()
