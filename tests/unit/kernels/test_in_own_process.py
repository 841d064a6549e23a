"""Every kernel against its reference, under Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_kernels_under_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE)]
    run = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=HERE.parents[2], capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stdout[-20_000:]}\n{run.stderr[-2_000:]}"
    passed = re.search(r"^(\d+) passed", run.stdout, re.MULTILINE)
    # What is not collected cannot fail.
    assert passed is not None
    assert int(passed[1]) >= 80
