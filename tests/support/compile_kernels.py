"""Compile Triton kernels for a CUDA device that is not there: what the interpreter runs, the compiler may refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


class AbsentDevice:
    """Answers what compilation asks of a driver."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(capability: int) -> Iterator[list[tuple[str, Any]]]:
    """Compile in place of launching, for a device of this compute capability; gives what was compiled, by name.

    Launches take tensors of the CPU for the device's, and leave their results unset.
    """
    compiled: list[tuple[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled.append((self.fn.__name__, run(self, *args, grid=grid, warmup=True, **kwargs)))

    previous = driver._active
    driver.set_active(AbsentDevice(capability))
    try:
        with mock.patch.object(JITFunction, "run", compile_only):
            yield compiled
    finally:
        driver._active = previous
