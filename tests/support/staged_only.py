"""Sees copies from the host that a device would make the host wait for, on a CPU where both are the same memory.

What was made of NumPy or of a list, or on no named device, is the host's; everything else is taken for the device's.
The host's may be copied over from pinned memory and without blocking alone (`dspark_sglang.graphs.staged`), and index
nothing there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

INDEXING = {"__getitem__", "__setitem__", "index_select", "index_add_", "index_add", "index_copy_", "gather"}
FROM_VALUES, FILLED, JOINED = {"tensor", "as_tensor"}, {"arange", "zeros", "ones", "full", "empty"}, {"cat", "stack"}


class BlockingCopyError(AssertionError):
    """The host would wait here."""


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class StagedOnly(TorchFunctionMode):
    """Refuses copies and look-ups of the host's tensors that are not staged; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._host: dict[int, Tensor] = {}
        self._staged: set[int] = set()
        self.copies = 0

    def host(self, values: Tensor) -> Tensor:
        """Note a tensor as the host's."""
        self._host[place(values)] = values
        return values

    def is_host(self, values: Any) -> bool:
        return isinstance(values, Tensor) and values.numel() > 0 and place(values) in self._host

    def staged(self, values: Tensor, device: torch.device) -> Tensor:
        """Stand where `dspark_sglang.graphs.staged` does."""
        if not self.is_host(values):
            return values
        with torch._C.DisableTorchFunction():
            pinned = values.clone()
        self._staged.add(place(pinned))
        return self.host(pinned)

    def _check_copy(self, name: str, source: Any, kwargs: dict[str, Any]) -> None:
        if not self.is_host(source):
            return
        self.copies += 1
        if place(source) not in self._staged or not kwargs.get("non_blocking"):
            raise BlockingCopyError(f"{name} of a host tensor {tuple(source.shape)} that is not staged, or blocks")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in FROM_VALUES and kwargs.get("device") is not None:
            raise BlockingCopyError(f"torch.{name} straight to a device waits for its stream")
        if name in FROM_VALUES or (name in FILLED and kwargs.get("device") is None):
            return self.host(func(*args, **kwargs))
        if name in JOINED and all(self.is_host(part) for part in args[0]):
            return self.host(func(*args, **kwargs))
        moves = name == "to" and any(isinstance(a, torch.device | str) for a in (*args[1:], kwargs.get("device")))
        if moves:
            self._check_copy(name, args[0], kwargs)
            # As on a device, another memory.
            return func(*args, **kwargs).clone() if self.is_host(args[0]) else func(*args, **kwargs)
        if name == "copy_":
            self._check_copy(name, args[1], kwargs)
        if name in INDEXING and isinstance(args[0], Tensor) and not self.is_host(args[0]):
            used = [leaf for leaf in tree_leaves((args[1:], kwargs)) if self.is_host(leaf) and leaf.dim() > 0]
            if used:
                raise BlockingCopyError(f"{name} of a device tensor by one of the host waits for its stream")
        return func(*args, **kwargs)


@contextmanager
def staged_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[StagedOnly]:
    """Run a block under `StagedOnly`, with its `staged` in every module that uses ours."""
    mode = StagedOnly()
    from_numpy = torch.from_numpy
    with monkeypatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("dspark_sglang.") and hasattr(module, "staged"):
                patch.setattr(module, "staged", mode.staged)
        # Not seen by function modes.
        patch.setattr(torch, "from_numpy", lambda array: mode.host(from_numpy(array)))
        with mode:
            yield mode
