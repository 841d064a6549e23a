"""``dspark doctor``: is everything in place, and if not, what to do."""

from __future__ import annotations

import logging
import sys
import warnings
from argparse import ArgumentParser, Namespace

HELP = "tell versions, device, threads and which plugin hooks took effect; what is missing and the remedy"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare no options; the exit status is 1 if something is missing."""
    parser.description = (
        "Look at everything that serving needs and print one line each. Exits 1 if something is missing, with the "
        "remedy beside it; notes do not fail."
    )


def run(args: Namespace) -> int:
    """Print the report; 1 if something is missing."""
    # SGLang's imports warn about hardware that is not here; the findings say what matters.
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    from dspark_sglang.doctor import State, examine

    failed = False
    for finding in examine():
        failed |= finding.state is State.MISSING
        sys.stdout.write(f"{finding.state.value:8}{finding.subject:36}{finding.detail}\n")
        if finding.remedy:
            sys.stdout.write(" " * 44 + f"-> {finding.remedy}\n")
        sys.stdout.flush()
    sys.stdout.write("something is missing\n" if failed else "everything is in place\n")
    return int(failed)
