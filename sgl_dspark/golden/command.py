"""Replay golden folders: recompute what the released code computed, and show the largest error of each quantity.

A folder holds a tiny target and draft with the tensors and loss terms that the paper's released code computes from
them (tests/golden/README.md). Exit status: 0 when everything is within tolerance, 1 when something is not, 2 when a
folder cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgl_dspark.golden.replay import Comparison

HELP = "replay reference vectors and show the largest error of each quantity"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "folders", metavar="DIR", nargs="+", type=Path, help="golden folder, e.g. tests/golden/qwen3_rnn"
    )


def run(args: argparse.Namespace) -> int:
    """Replay every folder of ``args.folders``; return 1 when a quantity is over tolerance, else 0."""
    from sgl_dspark.golden.replay import replay

    failures = 0
    for folder in args.folders:
        comparisons = replay(folder)
        failures += sum(not comparison.passed for comparison in comparisons)
        sys.stdout.write(format_table(str(folder), comparisons) + "\n\n")
        sys.stdout.flush()
    verdict = "all within tolerance" if failures == 0 else f"{failures} over tolerance"
    sys.stdout.write(f"{len(args.folders)} folder(s): {verdict}\n")
    return 0 if failures == 0 else 1


def format_table(title: str, comparisons: Sequence[Comparison]) -> str:
    """Return an aligned table of comparisons under ``title``."""
    rows: list[tuple[str, ...]] = [("quantity", "error", "tolerance", "measured as", "")]
    for item in comparisons:
        numbers = [
            f"{value:.0f}" if item.kind == "mismatches" else f"{value:.1e}" for value in (item.error, item.tolerance)
        ]
        rows.append((item.quantity, *numbers, item.kind, "ok" if item.passed else "OVER TOLERANCE"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for name, error, tolerance, kind, verdict in rows:
        measured = f"{error:>{widths[1]}}  {tolerance:>{widths[2]}}"
        lines.append(f"  {name:<{widths[0]}}  {measured}  {kind:<{widths[3]}}  {verdict}".rstrip())
    return "\n".join([title, *lines])
