"""A target reduced to what verification sees: layers that attend through our CUDA backend, run on a CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.radix_attention import AttentionType
from torch import Tensor

from dspark_sglang.attention.cuda import CudaRaggedBackend
from dspark_sglang.device_window import FlatVerify
from dspark_sglang.target_graph import Round
from tests.support.paged_reference import ReferencePagedPrefill

HEADS, KV_HEADS, LAYERS, VOCAB = 4, 2, 2, 11


class Pool:
    """Keys and values of each layer by slot."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def get_key_buffer(self, layer: int) -> Tensor:
        return self.keys[layer]

    def get_value_buffer(self, layer: int) -> Tensor:
        return self.values[layer]

    def set_kv_buffer(self, layer: Any, loc: Any, k: Tensor, v: Tensor) -> None:
        self.keys[layer.layer_id].index_copy_(0, loc.loc, k.view(-1, *self.keys.shape[2:]))
        self.values[layer.layer_id].index_copy_(0, loc.loc, v.view(-1, *self.values.shape[2:]))


class TinyTarget:
    """Embeds tokens and positions, attends in two layers, and reads logits and features off."""

    def __init__(
        self,
        slots: int,
        table: Tensor,
        page_size: int = 1,
        *,
        dim: int = 4,
        dtype: torch.dtype = torch.float32,
        make_wrapper: Any = ReferencePagedPrefill,
    ) -> None:
        generator, device, size = torch.Generator().manual_seed(0), table.device, HEADS * dim

        def random(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=generator) * scale).to(device, dtype)

        self.pool = Pool(*random(2, LAYERS, slots, KV_HEADS, dim))
        self.embed, self.place = random(VOCAB, size), random(200, size)
        small = size**-0.5
        self.q, self.o = random(LAYERS, size, size, scale=small), random(LAYERS, size, size, scale=small)
        self.k, self.v = (random(LAYERS, size, KV_HEADS * dim, scale=small) for _ in range(2))
        self.head = random(size, VOCAB, scale=small)
        config = SimpleNamespace(
            head_dim=dim, num_attention_heads=HEADS, get_num_kv_heads=lambda tp: KV_HEADS, context_len=200
        )
        self.runner: Any = SimpleNamespace(
            model_config=config,
            dtype=dtype,
            kv_cache_dtype=dtype,
            device=str(device),
            page_size=page_size,
            req_to_token_pool=SimpleNamespace(req_to_token=table),
            token_to_kv_pool=self.pool,
        )
        self.backend = CudaRaggedBackend(self.runner, make_wrapper)
        self.layers = [
            SimpleNamespace(
                layer_id=n,
                is_cross_attention=False,
                attn_type=AttentionType.DECODER,
                sliding_window_size=-1,
                logit_cap=0.0,
                qk_head_dim=dim,
                v_head_dim=dim,
                tp_q_head_num=HEADS,
                scaling=dim**-0.5,
            )
            for n in range(LAYERS)
        ]

    def weights(self) -> list[Tensor]:
        return [self.embed, self.place, self.q, self.o, self.k, self.v, self.head, self.pool.keys, self.pool.values]

    def forward(self, ids: Tensor, positions: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [T, V] and features [T, size]."""
        x = self.embed[ids] + self.place[positions]
        batch: Any = SimpleNamespace(out_cache_loc=slots)
        for n, layer in enumerate(self.layers):
            attended = self.backend.forward_extend(x @ self.q[n], x @ self.k[n], x @ self.v[n], layer, batch)
            x = x + attended @ self.o[n]
        return x @ self.head, x

    def flat(self, flat: FlatVerify) -> tuple[Tensor, Tensor]:
        """Run flat rows whose attention has been planned."""
        return self.forward(flat.ids, flat.positions, flat.slots)

    def planned(self, step: Round) -> Any:
        """Return a forward that plans ``step`` first, as SGLang does outside graphs."""

        def run(flat: FlatVerify) -> tuple[Tensor, Tensor]:
            batch = self.batch(step.request_rows, flat.verify_input(step.slots.shape[1], step.bounds, step.prefix_lens))
            self.backend.init_forward_metadata(batch)
            return self.flat(flat)

        return run

    def batch(self, request_rows: Tensor, spec_info: Any) -> Any:
        mode = SimpleNamespace(is_idle=lambda: False, is_target_verify=lambda: True, is_decode=lambda: False)
        return SimpleNamespace(forward_mode=mode, req_pool_indices=request_rows, spec_info=spec_info)
