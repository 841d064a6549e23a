"""``dspark simulate``: serve simulated load with the planner that serves.

The studies answer what a server cannot be asked in an afternoon:

  lag         what confidences that are 0 to 4 steps old lose
  context     what a step-time model gains that knows the context
  staircase   what stopping early loses where step time has stairs
  load        verify length and throughput against concurrency
  confidence  what miscalibration and fixed thresholds lose
  fleet       what a replica bears under an SLA, and how many a fleet needs

``compare`` serves your own load, trace, recorded confidences or measured
profile under every policy. Everything runs on one core.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from sgl_dspark.simulator.arrivals import at_least
from sgl_dspark.simulator.results import as_json
from sgl_dspark.simulator.studies import STUDIES, Cell

HELP = "compare verification policies on simulated load"
EPILOG = """Examples:
  dspark simulate --study all --out runs/simulator
  dspark simulate --study compare --load poisson:20 --machine h200 --out runs/mine
  dspark simulate --study compare --trace conv.csv.gz --requests 500 --profile step_time.json --out runs/trace"""

MINE = "compare"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the studies, and the load, machine and acceptance of ``compare``."""
    parser.add_argument(
        "--study", choices=(*STUDIES, "all", MINE), required=True, help="what to run; all: every study but compare"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON, PNG and Markdown")
    parser.add_argument("--seeds", type=int, default=5, help="runs of every condition, seeds 0, 1, ... (default 5)")
    parser.add_argument("--quick", action="store_true", help="fewer requests and levels; for a look, not for a figure")
    mine = parser.add_argument_group("compare")
    mine.add_argument(
        "--load", default="closed:16", help="closed:CLIENTS, poisson:RPS, bursty:RPS:CV or drain (default closed:16)"
    )
    mine.add_argument(
        "--trace", type=Path, help="arrivals and lengths from an Azure CSV or Mooncake JSONL, gzipped or not"
    )
    mine.add_argument("--speed", type=float, default=1.0, help="compress the arrivals of a trace by this factor")
    mine.add_argument("--length-scale", type=float, default=1.0, help="multiply the lengths of a trace")
    mine.add_argument("--requests", type=int, default=200, help="how many (default 200); of a trace, the first ones")
    mine.add_argument("--prompt-tokens", type=int, default=512, help="median; of a trace, unused (default 512)")
    mine.add_argument("--output-tokens", type=int, default=256, help="median; of a trace, unused (default 256)")
    mine.add_argument("--max-running", type=int, default=64, help="requests that decode together (default 64)")
    mine.add_argument("--machine", default="h200", help="h200, doubling, figure8 or cpu (default h200)")
    mine.add_argument(
        "--profile", type=Path, help="a step-time profile measured by `dspark profile`, instead of a machine"
    )
    mine.add_argument("--gamma", type=int, default=7, help="drafts per block, at most 7 (default 7)")
    mine.add_argument(
        "--mix", type=float, nargs=3, default=(1.0, 1.0, 1.0), metavar=("MATHS", "CODE", "CHAT"), help="shares"
    )
    mine.add_argument("--temperature", type=float, default=1.0, help="miscalibrate: 2 is overconfident, 0.5 timid")
    mine.add_argument(
        "--records", type=Path, help="recorded confidences (.npz of `dspark calibrate`), instead of synthetic"
    )
    mine.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4], help="of the adaptive policy")
    mine.add_argument("--threshold", type=float, default=0.5, help="of the threshold policy")


def run(args: Namespace) -> int:
    """Run the studies; 1 with one sentence on standard error when an input is unusable."""
    from sgl_dspark.errors import DsparkError
    from sgl_dspark.reports.simulate_mine import compare_mine

    try:
        at_least("--seeds", args.seeds, 1)
        seeds = range(args.seeds)
        for name in STUDIES if args.study == "all" else (args.study,):
            cells = compare_mine(args, seeds) if name == MINE else STUDIES[name](seeds, args.quick)
            _report(name, cells, seeds, args)
    except DsparkError as error:
        _log(f"error: {error}")
        return 1
    return 0


def _report(name: str, cells: Iterator[Cell], seeds: Sequence[int], args: Namespace) -> None:
    from sgl_dspark.reports.simulate_plots import plot
    from sgl_dspark.reports.simulate_tables import markdown

    started = time.monotonic()
    done = []
    for cell in cells:
        done.append(cell)
        _log(f"{name}: {cell.machine}, {cell.load} ({time.monotonic() - started:.0f} s)")
    args.out.mkdir(parents=True, exist_ok=True)
    text = markdown(name, done)
    (args.out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    document = {"study": name, "seeds": list(seeds), "quick": args.quick, "cells": [_cell(cell) for cell in done]}
    (args.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    plot(name, done, args.out / f"{name}.png")
    sys.stdout.write(text + "\n")
    _log(f"{name}: wrote {args.out / name}.md, .json and .png")


def _cell(cell: Cell) -> dict[str, object]:
    arms = {name: as_json(runs) for name, runs in cell.arms.items()}
    return {"machine": cell.machine, "load": cell.load, "concurrency": cell.concurrency, "arms": arms}


def _log(line: str) -> None:
    sys.stderr.write(f"simulate: {line}\n")
    sys.stderr.flush()
