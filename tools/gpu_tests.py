"""Run the GPU tests and fail if none of them ran: a suite that skips everything proves nothing."""

from __future__ import annotations

import sys

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
    """Return pytest's status, or 1 when nothing ran."""
    counter = RanCounter()
    status = int(pytest.main(["-m", "gpu", "-rs", *arguments], plugins=[counter]))
    if counter.ran == 0:
        print("gpu: error: no GPU test ran; this needs a CUDA device and tests marked `gpu`.", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
