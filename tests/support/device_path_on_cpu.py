"""Serve as on CUDA, on a CPU (`dspark_sglang.switches.run_test_hook`): plans, ranking and graphs, kernels in torch.

What is real: SGLang's scheduler and target, plans made from host lengths, lengths that only the device side knows,
captured operations replayed on the same memory. What is not: FlashInfer's kernel and CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dspark_sglang.attention.cuda import CudaRaggedBackend
from dspark_sglang.device_path import DevicePath, build_device_path
from dspark_sglang.graphs import Graph
from tests.support.fake_graph import FakeGraph, NoSync
from tests.support.paged_reference import ReferencePagedPrefill


def with_graphs(worker: Any) -> None:
    """Capture and replay."""
    _install(worker, lambda pool: FakeGraph())


def without_graphs(worker: Any) -> None:
    """Let every capture fail: each step takes the eager way, and is counted."""

    class Broken:
        def capture(self, run: Callable[[], None]) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        def replay(self) -> None:
            raise AssertionError("never captured")

    _install(worker, lambda pool: Broken())


def _install(worker: Any, make_graph: Callable[[object], Graph]) -> None:
    runner = worker.model_runner
    runner.attn_backend = CudaRaggedBackend(runner, ReferencePagedPrefill)
    path = build_device_path(worker, ReferencePagedPrefill, make_graph)
    assert path is not None
    worker.use_device_path(path)
    _copy_what_is_sent(worker.scheduler._relay)
    _refuse_to_wait(path)


def _copy_what_is_sent(relay: Any) -> None:
    """As on an accelerator: what the host reads later is a copy, and not the memory of the next replay."""
    send = relay.send

    def copied(step: int, slots: Any, generations: Any, kinds: Any, logits: Tensor, tokens: Tensor, ranked: Any) -> Any:
        own = None if ranked is None else tuple(part.clone() for part in ranked)
        return send(step, slots, generations, kinds, logits.clone(), tokens.clone(), own)

    relay.send = copied


def _refuse_to_wait(path: DevicePath) -> None:
    """Raise where the way from anchor to verdict would read the device, but for SGLang's own layers."""
    propose = path.propose

    def checked(*args: Any) -> Any:
        with NoSync():
            return propose(*args)

    # A replay runs recorded operations, which were checked when they were recorded.
    path.propose = checked  # type: ignore[method-assign]
