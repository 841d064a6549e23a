"""The CUDA attention backend, executed on a CPU: what it plans, what it refuses, and torch where FlashInfer cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang")
from dspark_sglang.attention.cuda import CudaRaggedBackend
from dspark_sglang.attention.register import register_backends
from sgl_dspark.errors import ConfigError
from tests.support.naive_attention import naive_attention
from tests.support.paged_reference import ReferencePagedPrefill
from tests.support.tiny_ragged_target import HEADS, KV_HEADS, TinyTarget

TABLE = torch.arange(64, dtype=torch.int32).view(2, 32)


def mode(*, verify: bool = False, decode: bool = False, idle: bool = False) -> Any:
    return SimpleNamespace(is_idle=lambda: idle, is_target_verify=lambda: verify, is_decode=lambda: decode)


def attended(target: TinyTarget, batch: Any, rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one layer over stored keys; returns queries [T, H, D] and the result."""
    target.backend.init_forward_metadata(batch)
    queries = torch.randn(rows, HEADS, 4, generator=torch.Generator().manual_seed(seed))
    layer: Any = target.layers[0]
    return queries, target.backend.forward_extend(queries.view(rows, -1), None, None, layer, batch, save_kv_cache=False)


@pytest.mark.parametrize("torch_alone", [False, True])
@pytest.mark.parametrize("kind", ["prefill", "decode", "warm-up"])
def test_every_kind_of_forward(kind: str, torch_alone: bool) -> None:
    target = TinyTarget(64, TABLE)
    if torch_alone:
        target.backend.obstacle = "fp32"
    q_lens, kv_lens = {"prefill": ([3, 5], [3, 9]), "decode": ([1, 1], [4, 9]), "warm-up": ([2, 2], [6, 3])}[kind]
    batch = SimpleNamespace(
        forward_mode=mode(verify=kind == "warm-up", decode=kind == "decode"),
        req_pool_indices=torch.tensor([1, 0]),
        seq_lens_cpu=torch.tensor([4, 1] if kind == "warm-up" else kv_lens),
        extend_seq_lens_cpu=q_lens,
        spec_info=SimpleNamespace(draft_token_num=2),
    )
    queries, got = attended(target, batch, sum(q_lens))
    slots = [TABLE[1, : kv_lens[0]].tolist(), TABLE[0, : kv_lens[1]].tolist()]
    want = naive_attention(slots, q_lens, queries, target.pool.keys[0], target.pool.values[0], 0.5, causal=True)
    torch.testing.assert_close(got.view(-1, HEADS, 4).double(), want, rtol=1e-4, atol=1e-5)


def test_what_it_refuses() -> None:
    target = TinyTarget(64, TABLE)
    backend, layer = target.backend, target.layers[0]
    with pytest.raises(ConfigError, match="--cuda-graph-backend-decode disabled"):
        backend.init_cuda_graph_state(4, 20)
    target.runner.kv_cache_dtype = torch.float8_e4m3fn
    with pytest.raises(ConfigError, match="--kv-cache-dtype"):
        CudaRaggedBackend(target.runner, ReferencePagedPrefill)
    batch: Any = SimpleNamespace(forward_mode=mode(idle=True))
    backend.init_forward_metadata(batch)
    q = torch.zeros(1, HEADS * 4)
    layer.scaling = 1.0
    with pytest.raises(NotImplementedError, match="scales scores"):
        backend.forward_extend(q, q, q, layer, batch)
    layer.scaling, layer.sliding_window_size = 0.5, 7
    with pytest.raises(NotImplementedError, match="dspark_cuda attention backend has no sliding window"):
        backend.forward_extend(q, q, q, layer, batch)
    with pytest.raises(NotImplementedError, match="attention input sinks"):
        backend.forward_extend(q, q, q, layer, batch, sinks=q)


def test_without_flashinfer_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    target = TinyTarget(64, TABLE)
    backend = CudaRaggedBackend(target.runner)
    assert backend.obstacle is not None
    assert "needs a CUDA device" in caplog.text
    assert backend.get_cuda_graph_seq_len_fill_value() == 1
    assert (backend.heads.queries, backend.heads.keys) == (HEADS, KV_HEADS)


def test_it_is_refused_on_a_cpu_by_its_reason() -> None:
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    register_backends()
    runner: Any = SimpleNamespace(device="cpu")
    with pytest.raises(ConfigError, match="dspark_cuda needs a CUDA device"):
        ATTENTION_BACKENDS["dspark_cuda"](runner)
