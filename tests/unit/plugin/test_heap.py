"""Run apart, since it changes the allocator of the process that calls it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from dspark_sglang import heap

CODE = """
import resource, torch
from dspark_sglang.heap import keep_freed_memory
assert keep_freed_memory()
for _ in range(5):
    torch.ones(5_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    torch.ones(5_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_tensor_that_was_freed_is_not_faulted_in_again() -> None:
    """Twenty megabytes are 4883 pages of 4 KiB; given back to the kernel, each of 50 turns would fault them in anew."""
    faults = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True).stdout
    assert int(faults) < 10_000


def test_another_c_library_is_served_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert heap.keep_freed_memory() is False
