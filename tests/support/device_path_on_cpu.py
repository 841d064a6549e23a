"""Serve as on CUDA, on a CPU (`dspark_sglang.switches.run_test_hook`): plans, ranking and graphs, kernels in torch.

What is real: SGLang's scheduler and target, plans made from host lengths, lengths that only the device side knows,
captured operations replayed on the same memory. What is not: FlashInfer's kernel and CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dspark_sglang import compat
from dspark_sglang.attention.cuda import CudaRaggedBackend
from dspark_sglang.device_path import build_device_path
from dspark_sglang.graphs import Graph
from sgl_dspark.model import packed
from sgl_dspark.model.checkpoint import load_drafter
from tests.support.fake_graph import FakeGraph
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
    _unpack(worker)
    runner.attn_backend = CudaRaggedBackend(runner, ReferencePagedPrefill)
    path = build_device_path(worker, ReferencePagedPrefill, make_graph)
    assert path is not None
    worker.use_device_path(path)
    _copy_what_is_sent(worker.scheduler._relay)


def _unpack(worker: Any) -> None:
    """Load the draft again without oneDNN's layout, which is opaque to what records operations."""
    packed.can_pack = lambda weight: False
    worker.drafter = worker.parts.drafter = load_drafter(
        worker.config.draft_path,
        dtype=worker.model_runner.dtype,
        device=worker.device,
        **compat.target_embeddings(worker.model_runner),
    )
    worker.drafter.reserve_positions(worker.model_runner.model_config.context_len + 2 * worker.stride)
    worker.drafter.fuse_for_serving()


def _copy_what_is_sent(relay: Any) -> None:
    """As on an accelerator: what the host reads later is a copy, and not the memory of the next replay."""
    send = relay.send

    def copied(step: int, slots: Any, generations: Any, kinds: Any, logits: Tensor, tokens: Tensor, ranked: Any) -> Any:
        own = None if ranked is None else tuple(part.clone() for part in ranked)
        return send(step, slots, generations, kinds, logits.clone(), tokens.clone(), own)

    relay.send = copied
