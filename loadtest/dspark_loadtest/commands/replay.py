"""``replay``: one trace against one server."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from dspark_loadtest import options
from dspark_loadtest.report.document import Table
from dspark_loadtest.report.run import accounting, figures_table, outcomes_table, series_table, write_report
from dspark_loadtest.session import Measured, look_at, measure

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def add(actions: Any) -> None:
    """Declare the action."""
    parser = options.add_action(actions, "replay", "send a trace at its own times, or with a number of clients", run)
    options.add_server(parser)
    options.add_trace(parser, required=False)
    options.add_run(parser)
    options.add_asking(parser)
    parser.add_argument("--out", type=Path, default=Path("runs/loadtest"), metavar="DIR", help="default: runs/loadtest")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: Namespace) -> int:
    """Replay and report.

    Returns
    -------
    int
        0; 1 if the run is not what it claims to be (late sends, tokens that do not add up, nothing answered); 130
        after Ctrl-C. The report is written in each case.
    """
    workload = options.workload_of(args, options.trace_of(args))
    with options.served(args, args.out) as url:
        served = look_at(url, args.prompts)
        options.say(f"{served.model} at {url}: {len(workload.trace)} requests over {workload.trace.span_s:.0f} s")
        measured = measure(served, workload, show=not args.quiet)
    page = write_report(measured, served, workload, args.out)
    show(measured)
    print(f"\nreport: {page}")
    if measured.outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if measured.summary["problems"] else 0


def show(measured: Measured) -> None:
    """Print the figures of a run."""
    summary = measured.summary
    blocks = [figures_table(summary), series_table(summary), outcomes_table(summary), *accounting(summary)]
    print("\n\n".join(plain(block) if isinstance(block, Table) else block for block in blocks))
    for problem in summary["problems"]:
        print(f"\nPROBLEM: {problem}")


def plain(table: Table) -> str:
    """Align a table for a terminal."""
    lines = [table.header, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
