"""``convert``, ``validate`` and ``generate``: traces as files."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from dspark_loadtest import options
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.traces.canonical import FORMATS, load_trace, write_trace
from dspark_loadtest.traces.fit import describe, spread, tick_ms
from dspark_loadtest.traces.request import Trace
from dspark_loadtest.traces.servegen import load_servegen
from dspark_loadtest.traces.synthetic import Phase, Prefixes, diurnal, generate, step_burst
from sgl_dspark.simulator.arrivals import Lengths


def add(actions: Any) -> None:
    """Declare the three actions."""
    convert = options.add_action(
        actions, "convert", "write a trace of another format in the canonical one", run_convert
    )
    convert.add_argument(
        "source", type=Path, help="Azure or BurstGPT CSV, Bailian or Mooncake JSON lines, ServeGen folder"
    )
    convert.add_argument("target", type=Path, help=".jsonl or .jsonl.gz, which AIPerf reads too")
    convert.add_argument("--format", choices=FORMATS, help="default: what its first line looks like")
    convert.add_argument(
        "--from", dest="start_s", type=options.not_negative, default=0.0, metavar="S", help="of ServeGen"
    )
    convert.add_argument("--take", type=options.positive, default=600.0, metavar="S", help="of ServeGen (default: 600)")
    convert.add_argument("--spread", action="store_true", help="move rounded timestamps uniformly within their tick")
    convert.add_argument("--seed", type=options.whole, default=0, metavar="N")

    validate = options.add_action(actions, "validate", "check every row of a trace, and tell its shape", run_validate)
    validate.add_argument("files", type=Path, nargs="+")
    validate.add_argument("--format", choices=FORMATS, help="default: what its first line looks like")

    made = options.add_action(actions, "generate", "make a trace up", run_generate)
    made.add_argument("target", type=Path, help=".jsonl or .jsonl.gz")
    made.add_argument("--arrivals", choices=("poisson", "gamma", "diurnal", "step"), default="poisson")
    made.add_argument("--rate", type=options.positive, default=1.0, metavar="RPS", help="mean (default: 1)")
    made.add_argument("--duration", type=options.positive, default=600.0, metavar="S", help="default: 600")
    made.add_argument("--cv", type=options.positive, default=2.0, metavar="CV", help="of gamma's gaps (default: 2)")
    made.add_argument("--swing", type=options.not_negative, default=0.8, metavar="SHARE", help="of diurnal (0.8)")
    made.add_argument("--factor", type=options.positive, default=10.0, metavar="F", help="of the step's burst (10)")
    made.add_argument("--burst", type=options.positive, default=1.0, metavar="S", help="of the step (default: 1)")
    made.add_argument("--prompt-tok", type=options.count, default=512, metavar="TOK", help="median (default: 512)")
    made.add_argument("--output-tok", type=options.count, default=128, metavar="TOK", help="median (default: 128)")
    made.add_argument("--prefixes", type=options.count, default=1, metavar="N", help="shared beginnings")
    made.add_argument("--prefix-blocks", type=options.whole, default=0, metavar="N", help="of 64 tokens, of each")
    made.add_argument("--seed", type=options.whole, default=0, metavar="N")


def run_convert(args: Namespace) -> int:
    """Write the canonical form; returns 0."""
    if args.source.is_dir():
        trace = load_servegen(args.source, start_s=args.start_s, duration_s=args.take, seed=args.seed)
    else:
        trace = load_trace(args.source, form=args.format)
    if args.spread:
        trace = spread(trace, seed=args.seed)
    return _write(trace, args.target)


def run_generate(args: Namespace) -> int:
    """Write a synthetic trace; returns 0."""
    if args.arrivals == "diurnal":
        phases = diurnal(args.duration, args.rate, args.swing)
    elif args.arrivals == "step":
        phases = step_burst(args.duration, args.rate, args.factor, args.burst)
    else:
        phases = [Phase(args.duration, args.rate)]
    trace = generate(
        phases,
        Lengths(args.prompt_tok, args.output_tok),
        cv=args.cv if args.arrivals == "gamma" else 1.0,
        seed=args.seed,
        prefixes=Prefixes(args.prefixes, args.prefix_blocks),
    )
    return _write(trace, args.target)


def _write(trace: Trace, target: Path) -> int:
    if not target.name.endswith((".jsonl", ".jsonl.gz")):
        raise LoadtestError(f"{target}: a trace is a .jsonl or .jsonl.gz file; rename it")
    write_trace(trace, target)
    print(json.dumps({"written": str(target), **trace.source, **describe(trace)}, indent=1))
    return 0


def run_validate(args: Namespace) -> int:
    """Print the shape of each file; a file that is not a trace ends the command with its first mistake."""
    for file in args.files:
        trace = load_trace(file, form=args.format)
        tick = tick_ms(trace)
        facts = {**trace.source, "block_size": trace.block_size, "timestamps_rounded_to_ms": tick}
        print(json.dumps({**facts, **describe(trace)}, indent=1))
    return 0
