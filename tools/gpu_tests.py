"""Run the GPU tests, fail if none of them ran, and time the CUDA path's parts.

    python tools/gpu_tests.py [--no-timings] [--results DIR] [pytest arguments]

A suite that skips everything proves nothing. See docs/gpu.md.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest


class RanCounter:
    """Pytest plugin that counts the tests whose body was executed."""

    def __init__(self) -> None:
        self.ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one test: skipped ones either have no call phase or report it as skipped."""
        if report.when == "call" and not report.skipped:
            self.ran += 1


def main(arguments: list[str]) -> int:
    """Return pytest's status, 1 when nothing ran, or that of the timings."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--no-timings", action="store_true")
    parser.add_argument("--results", default="docs/results")
    args, rest = parser.parse_known_args(arguments)
    counter = RanCounter()
    status = int(pytest.main(["-m", "gpu", "-rs", *rest], plugins=[counter]))
    if counter.ran == 0:
        print("gpu: error: no GPU test ran; this needs a CUDA device and tests marked `gpu`.", file=sys.stderr)
        return 1
    if status or args.no_timings:
        return status
    # After the tests, since figures of what is wrong are worth nothing; and only where these ran, that is on CUDA.
    command = [sys.executable, str(Path(__file__).with_name("gpu_timings.py")), "--out", args.results]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
