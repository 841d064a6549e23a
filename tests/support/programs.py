"""What the tests need besides Python packages: skipped without it, except in CI, which must have it."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def missing(message: str, variable: str) -> NoReturn:
    """Skip the test, or fail it where ``variable`` says that this machine has what is missing."""
    if os.environ.get(variable):
        pytest.fail(message)
    pytest.skip(message)


def require(program: str, remedy: str, variable: str) -> str:
    """Find a program on the PATH; see `missing`."""
    found = shutil.which(program)
    if found is None:
        missing(f"{program} is not on the PATH; {remedy}", variable)
    return found
