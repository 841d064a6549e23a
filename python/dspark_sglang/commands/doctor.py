"""``dspark doctor``: is everything in place, and if not, what to do."""

from __future__ import annotations

import logging
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable

from dspark_sglang.findings import Finding, State

HELP = "tell versions, device, threads and which plugin hooks took effect; what is missing and the remedy"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the option; the exit status is 1 if something is missing."""
    parser.description = (
        "Look at everything that serving needs and print one line each. Exits 1 if something is missing, with the "
        "remedy beside it; notes do not fail."
    )
    parser.add_argument(
        "--upstream",
        action="store_true",
        help="look instead at each hook, contract and import of SGLang that is relied on, in whichever release is "
        "installed; 1 if one has moved",
    )


def run(args: Namespace) -> int:
    """Print the report; 1 if something is missing, or has moved."""
    # SGLang's imports warn about hardware that is not here; the findings say what matters.
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            missing, end = _upstream() if args.upstream else _here()
    finally:
        logging.disable(before)
    sys.stdout.write(end + "\n")
    return int(bool(missing))


def _here() -> tuple[list[Finding], str]:
    from dspark_sglang.doctor import examine

    missing = show(examine())
    return missing, "something is missing" if missing else "everything is in place"


def _upstream() -> tuple[list[Finding], str]:
    from dspark_sglang import launch, upstream

    missing = show(upstream.examine(launch.SUPPORTED_SGLANG))
    moved = ", ".join(finding.detail for finding in missing)
    return missing, f"moved: {moved}" if missing else "everything is where it was"


def show(findings: Iterable[Finding]) -> list[Finding]:
    """Print findings as they are made; return those that fail the command."""
    missing = []
    for finding in findings:
        if finding.state is State.MISSING:
            missing.append(finding)
        sys.stdout.write(f"{finding.state.value:8}{finding.subject:36}{finding.detail}\n")
        if finding.remedy:
            sys.stdout.write(" " * 44 + f"-> {finding.remedy}\n")
        sys.stdout.flush()
    return missing
