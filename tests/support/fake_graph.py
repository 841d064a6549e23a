"""A CUDA graph on a CPU: records operations and runs them again on the same memory, and knows what they read.

As in a real one, Python runs at capture only: whatever is not in a buffer keeps the value it had. Operations that would
wait for the device are refused, as capture refuses them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

SYNCHRONISING = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::is_nonzero",
    "aten::equal",
}
RANDOM = {"aten::rand", "aten::uniform_", "aten::multinomial", "aten::normal_", "aten::randint", "aten::bernoulli_"}


class SynchronisesError(RuntimeError):
    """An operation would wait for the device; capture of a real graph fails there with a RuntimeError too."""


def tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, Tensor)]


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class NoSync(TorchDispatchMode):
    """Refuses operations that synchronise or whose shape depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse(func, args)
        return func(*args, **(kwargs or {}))


def refuse(func: Any, args: Any) -> None:
    name = func._schema.name
    if name in SYNCHRONISING:
        raise SynchronisesError(f"{name} waits for the device")
    indices = args[1] if name in ("aten::index", "aten::index_put_", "aten::index_put") else []
    if any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices):
        raise SynchronisesError(f"{name} by a mask waits for the device")
    if name == "aten::repeat_interleave" and len(args) < 2:
        raise SynchronisesError(f"{name} without an output size waits for the device")


class FakeGraph(TorchDispatchMode):
    """Stands where `dspark_sglang.graphs.CudaGraph` does.

    Attributes
    ----------
    reads, writes : dict
        Memory from outside that a replay reads and writes: storage address to a tensor of it.
    """

    recording: ClassVar[FakeGraph | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Callable[[], None]] = []
        self._own: set[int] = set()
        # What was recorded stays alive, or its addresses would be handed out again.
        self._kept: list[Any] = []
        self.reads: dict[int, Tensor] = {}
        self.writes: dict[int, Tensor] = {}
        self.replays = 0

    def capture(self, run: Callable[[], None]) -> None:
        """Run twice, as a real capture warms up, and record the second."""
        run()
        FakeGraph.recording = self
        try:
            with self:
                run()
        except SynchronisesError:
            # The message alone does not say whose operation it was.
            traceback.print_exc()
            raise
        finally:
            FakeGraph.recording = None

    def replay(self) -> None:
        self.replays += 1
        for step in self._steps:
            step()

    def unknown(self, known: Iterable[Tensor]) -> list[Tensor]:
        """List what a replay reads from outside besides ``known``: memory that may be gone by then."""
        places = {place(tensor) for tensor in known}
        return [tensor for at, tensor in self.reads.items() if at not in places]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        refuse(func, args)
        name = func._schema.name
        if name in RANDOM:
            raise AssertionError(f"{name}: numbers in a graph come from counters")
        out = func(*args, **kwargs)
        self._note(tensors((args, kwargs)), tensors(out), func)
        if not func.is_view and name not in ("aten::empty.memory_format", "aten::empty"):
            self._steps.append(self._again(func, args, kwargs, out))
        self._kept.append((args, kwargs, out))
        return out

    def opaque(self, compute: Callable[[], Tensor], reads: list[Tensor]) -> Tensor:
        """Record a whole function, such as a kernel, as one operation."""
        with _disable_current_modes():
            out = compute()
        for tensor in reads:
            self._read(tensor)
        self._own.add(place(out))
        self._kept.append(out)

        def step() -> None:
            out.copy_(compute())

        self._steps.append(step)
        return out

    def _note(self, given: list[Tensor], found: list[Tensor], func: Any) -> None:
        before = {place(tensor) for tensor in given}
        written = [
            a for a, s in zip(given, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write
        ]
        for tensor in given:
            self._read(tensor)
        for tensor in written:
            if place(tensor) not in self._own:
                self.writes[place(tensor)] = tensor
        self._own.update(place(tensor) for tensor in found if place(tensor) not in before)

    def _read(self, tensor: Tensor) -> None:
        if place(tensor) not in self._own:
            self.reads[place(tensor)] = tensor

    @staticmethod
    def _again(func: Any, args: Any, kwargs: Any, out: Any) -> Callable[[], None]:
        kept = tensors(out)
        given = {id(tensor) for tensor in tensors((args, kwargs))}

        def step() -> None:
            for old, new in zip(kept, tensors(func(*args, **kwargs)), strict=True):
                # In place, or into memory of the caller's: done already.
                if id(old) not in given and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        return step
