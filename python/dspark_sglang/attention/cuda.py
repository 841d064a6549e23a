"""SGLang's attention backend on CUDA: the same ragged plans, executed by FlashInfer, or by torch where it cannot.

Shape legend: T flat query tokens, N planned rows, H query heads, K KV heads, D head dim.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang.attention import CUDA_BACKEND_NAME
from dspark_sglang.attention.cpu import run_tiles
from dspark_sglang.attention.flashinfer import Heads, PagedAttention, unsupported, workspace_bytes
from dspark_sglang.attention.layout import build_plan
from dspark_sglang.attention.paged import build_paged
from dspark_sglang.compat import AttentionBackend, KVWriteLoc, refuse_unsupported_inputs, refuse_unsupported_layer
from dspark_sglang.verify import VerifyInput
from sgl_dspark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from torch import Tensor

    from dspark_sglang.attention.window import PlannedRows

    Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

logger = logging.getLogger(__name__)

# Rows of a prefill chunk beside those of decode steps: what the shared scratch is sized for.
PREFILL_ROWS = 8192


@dataclass(frozen=True)
class RowMap:
    """Planned rows of a verification whose lengths only the device knows.

    Attributes
    ----------
    rows : PlannedRows
    slots : int64 [N]
        KV slot that each planned row writes.
    """

    rows: PlannedRows
    slots: Tensor


def heads_of(runner: ModelRunner) -> Heads:
    """Return the target's heads and the page size of its KV pool."""
    config = runner.model_config
    dim = int(config.head_dim)
    return Heads(
        int(config.num_attention_heads), int(config.get_num_kv_heads(1)), dim, runner.dtype, dim**-0.5, runner.page_size
    )


class CudaRaggedBackend(AttentionBackend):
    """Prefill and ragged verification from one plan per forward.

    Parameters
    ----------
    runner : ModelRunner
    make_wrapper : callable, optional
        In place of FlashInfer's class; see `PagedAttention`.

    Attributes
    ----------
    obstacle : str or None
        Why FlashInfer is not used, and with it neither graphs nor device-side lengths.
    """

    # Plans are made on the host.
    needs_cpu_seq_lens = True

    def __init__(self, runner: ModelRunner, make_wrapper: Any = None) -> None:
        super().__init__()
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.heads, self.device = heads_of(runner), torch.device(runner.device)
        if runner.kv_cache_dtype != runner.dtype:
            raise ConfigError(
                f"--kv-cache-dtype: the attention backend {CUDA_BACKEND_NAME} reads keys and values in the model's own "
                "type; leave it out, or give --attention-backend flashinfer, which verifies whole blocks"
            )
        self.obstacle = None if make_wrapper is not None else unsupported(self.heads, self.device)
        self._make_wrapper = make_wrapper
        self._attend: Attend | None = None
        self._map: RowMap | None = None
        if self.obstacle is None:
            slots = int(self.req_to_token_pool.req_to_token.shape[0])
            size = workspace_bytes(self.heads, slots, max(PREFILL_ROWS, 16 * slots))
            self.workspace = torch.empty(size, dtype=torch.uint8, device=self.device)
            self._eager = PagedAttention(self.heads, self.device, self.workspace, make_wrapper=make_wrapper)
        else:
            logger.warning("attention in torch, without graphs and slower: %s", self.obstacle)

    def support_triton(self) -> bool:
        """Whether Triton kernels may run beside this backend."""
        return True

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Refuse SGLang's own graphs, which verify equal lengths only."""
        raise ConfigError(
            f"SGLang's CUDA graphs do not run with --attention-backend {CUDA_BACKEND_NAME}, which captures its own; "
            "give --cuda-graph-backend-decode disabled and --cuda-graph-backend-prefill disabled, as dspark serve does"
        )

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the committed length of the requests of SGLang's warm-up runs."""
        return 1

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plan this forward from host lengths; called once, before its first layer."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self._attend = self._map = None
            return
        row_map = None
        if mode.is_target_verify():
            # `seq_lens` of a verify batch are the committed lengths, anchor excluded.
            spec_info = forward_batch.spec_info
            if isinstance(spec_info, VerifyInput):
                # Where the device alone knows how many rows are verified, these are the most that there can be.
                q_lens, prefix_lens, row_map = spec_info.verify_lens_cpu, spec_info.prefix_lens_cpu, spec_info.row_map
            else:
                # SGLang's own warm-up runs, over whole windows.
                prefix_lens = forward_batch.seq_lens_cpu.tolist()
                q_lens = [spec_info.draft_token_num] * len(prefix_lens)
            kv_lens = [p + q for p, q in zip(prefix_lens, q_lens, strict=True)]
        else:
            kv_lens = forward_batch.seq_lens_cpu.tolist()
            q_lens = [1] * len(kv_lens) if mode.is_decode() else list(forward_batch.extend_seq_lens_cpu)
        self.prepare(self.plan(forward_batch.req_pool_indices, q_lens, kv_lens), row_map)

    def plan(self, request_rows: Tensor, q_lens: Sequence[int], kv_lens: Sequence[int]) -> Attend:
        """Plan causal attention outside graphs; returns what the layers call."""
        table = self.req_to_token_pool.req_to_token
        if self.obstacle is not None:
            ragged = build_plan(table, request_rows, q_lens, kv_lens, causal=True)
            return lambda q, k, v: run_tiles(ragged, q, k, v, self.heads.scale)
        plan = build_paged(q_lens, kv_lens, page_size=self.heads.page_size, causal=True)
        self._eager.plan(plan, table, request_rows)
        return self._eager.run

    def prepare(self, attend: Attend, row_map: RowMap | None) -> None:
        """Set what the layers of the next forward, or of a capture, attend with."""
        self._attend, self._map = attend, row_map

    def _forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
    ) -> Tensor:
        refuse_unsupported_layer(layer, CUDA_BACKEND_NAME)
        if abs(layer.scaling - self.heads.scale) > 1e-6 * self.heads.scale:
            raise NotImplementedError(
                f"the {CUDA_BACKEND_NAME} attention backend scales scores by 1/sqrt(head dim); "
                "give another --attention-backend"
            )
        assert self._attend is not None
        q_THD = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        if self._map is None:
            if save_kv_cache and k is not None and v is not None:
                self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
            return self._attend(q_THD.contiguous(), keys, values).reshape(q.shape[0], -1)
        # Whether or not the model has stored the rows itself: those past a request's length must be written too.
        if k is None or v is None:
            raise NotImplementedError(
                f"the {CUDA_BACKEND_NAME} attention backend needs each layer's keys and values; "
                "give another --attention-backend"
            )
        spread, pack = self._map.rows.spread, self._map.rows.pack
        k, v = (x.reshape(q.shape[0], -1)[spread].view(len(spread), *keys.shape[1:]) for x in (k, v))
        self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(self._map.slots, None), k, v)
        return self._attend(q_THD[spread], keys, values)[pack].reshape(q.shape[0], -1)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **others):  # type: ignore[no-untyped-def]
        """Prefill, chunked prefill and target verification."""
        refuse_unsupported_inputs(others, CUDA_BACKEND_NAME)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **others):  # type: ignore[no-untyped-def]
        """One token per request."""
        refuse_unsupported_inputs(others, CUDA_BACKEND_NAME)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)
