"""CPU execution of a `RaggedPlan`, and the SGLang attention backend around it.

`run_plan` is also the reference that GPU backends are compared with.

Shape legend: T query tokens, H query heads, K KV heads, D head dim, S KV slots,
B requests of a tile, Q query rows of a tile, G = H / K, L KV length of a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from dspark_sglang.attention import CPU_BACKEND_NAME, kernel
from dspark_sglang.attention.layout import RaggedPlan, build_plan
from dspark_sglang.attention.tiles import Tile
from dspark_sglang.compat import AttentionBackend, KVWriteLoc, refuse_unsupported_inputs, refuse_unsupported_layer

# KV slots up to which the tiles of a plan are gathered together.
MAX_GATHER = 16_384

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


def _run_tile(
    tile: Tile, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    """Attend a tile's rows ``[B * Q, K, G, D]``, padding included, to its KV ``[B * L, K, D]``; writes ``out``."""
    _, num_kv, group, dim = rows.shape
    b, q, kv = tile.num_requests, tile.num_rows, tile.kv_len
    # The G query heads of a KV head become extra query rows, so K and V are read
    # once per KV head and never repeated. In fp32 whatever the model's type: that takes
    # no longer here, and a row's result then hardly depends on how many rows share the
    # pass, so that verification rounds as plain decoding does.
    q_BKRD = rows.view(b, q, num_kv, group, dim).permute(0, 2, 1, 3, 4).reshape(b, num_kv, q * group, dim).float()
    k_BKLD = keys.view(b, kv, num_kv, dim).transpose(1, 2).float()
    v_BKLD = values.view(b, kv, num_kv, dim).transpose(1, 2).float()
    found = F.scaled_dot_product_attention(q_BKRD, k_BKLD, v_BKLD, attn_mask=tile.bias(group), scale=scale)
    out.view(b, q, num_kv, group, dim).copy_(found.view(b, num_kv, q, group, dim).permute(0, 2, 1, 3, 4))


def run_plan(
    plan: RaggedPlan, q_THD: torch.Tensor, keys_SKD: torch.Tensor, values_SKD: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend every query row to its request's KV.

    Parameters
    ----------
    plan : RaggedPlan
        Rows and slots of this forward.
    q_THD : float [T, H, D]
        Flat, request-major queries with positions already applied.
    keys_SKD, values_SKD : float [S, K, D]
        One layer of a KV pool, indexed by slot; H is a multiple of K.
    scale : float
        Multiplied into the scores before the softmax.

    Returns
    -------
    float [T, H, D]
        In the query's dtype; rows are independent of how the plan was tiled up
        to rounding.
    """
    if kernel.supported(q_THD, keys_SKD, values_SKD):
        return kernel.attend(plan, q_THD, keys_SKD, values_SKD, scale)
    return run_tiles(plan, q_THD, keys_SKD, values_SKD, scale)


def run_tiles(
    plan: RaggedPlan, q_THD: torch.Tensor, keys_SKD: torch.Tensor, values_SKD: torch.Tensor, scale: float
) -> torch.Tensor:
    """Do the same in padded tiles of torch's own attention: any head dim, dtype and device."""
    num_rows, heads, dim = q_THD.shape
    num_kv = keys_SKD.shape[1]
    q_TKGD = q_THD.view(num_rows, num_kv, heads // num_kv, dim)
    if len(plan.tiles) == 1 and plan.tiles[0].rows is None:
        slots = plan.tiles[0].slots
        out = torch.empty_like(q_TKGD)
        _run_tile(plan.tiles[0], q_TKGD, keys_SKD.index_select(0, slots), values_SKD.index_select(0, slots), scale, out)
        return out.view(num_rows, heads, dim)
    if not plan.tiles:
        return torch.empty_like(q_THD)
    # One gather for all tiles: in a decode step the calls cost as much as the copying. A prefill in chunks reads the
    # same KV for each of its tiles, and gathers them one after the other.
    gathers = plan.gathers
    rows = q_TKGD.index_select(0, gathers.rows)
    at_once = gathers.slots.numel() <= MAX_GATHER
    if at_once:
        all_keys, all_values = keys_SKD.index_select(0, gathers.slots), values_SKD.index_select(0, gathers.slots)
    padded = torch.empty_like(rows)
    row = slot = 0
    for tile in plan.tiles:
        row_end, slot_end = row + tile.num_requests * tile.num_rows, slot + tile.num_requests * tile.kv_len
        if at_once:
            keys, values = all_keys[slot:slot_end], all_values[slot:slot_end]
        else:
            keys, values = keys_SKD.index_select(0, tile.slots), values_SKD.index_select(0, tile.slots)
        _run_tile(tile, rows[row:row_end], keys, values, scale, padded[row:row_end])
        row, slot = row_end, slot_end
    return padded.index_select(0, gathers.back).view(num_rows, heads, dim)


class CpuRaggedBackend(AttentionBackend):
    """Prefill, decode and ragged target verification from one plan per forward.

    There is no Python loop over requests inside a layer: a step's requests run as
    one dense tile, or as a few when their lengths differ too much for padding to pay.
    """

    # Tiles are sized on the host.
    needs_cpu_seq_lens = True

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__()
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self._plan: RaggedPlan | None = None

    def support_triton(self) -> bool:
        """Whether Triton kernels may run beside this backend: never on a CPU."""
        return False

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plan this forward; called once, before its first layer."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self._plan = None
            return
        if mode.is_target_verify():
            # `seq_lens` of a verify batch are the committed lengths, anchor excluded.
            q_lens = forward_batch.spec_info.verify_lens_cpu
            prefix = forward_batch.spec_info.prefix_lens_cpu
            kv_lens = [p + q for p, q in zip(prefix, q_lens, strict=True)]
        else:
            kv_lens = forward_batch.seq_lens_cpu.tolist()
            q_lens = [1] * len(kv_lens) if mode.is_decode() else list(forward_batch.extend_seq_lens_cpu)
        self._plan = build_plan(
            self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices, q_lens, kv_lens, causal=True
        )

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
    ) -> torch.Tensor:
        refuse_unsupported_layer(layer, CPU_BACKEND_NAME)
        if save_kv_cache and k is not None and v is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        assert self._plan is not None
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        q_THD = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = run_plan(self._plan, q_THD, keys, values, layer.scaling)
        return out.reshape(-1, layer.tp_q_head_num * layer.v_head_dim)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **others):  # type: ignore[no-untyped-def]
        """Prefill, chunked prefill and target verification."""
        refuse_unsupported_inputs(others, CPU_BACKEND_NAME)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **others):  # type: ignore[no-untyped-def]
        """One token per request."""
        refuse_unsupported_inputs(others, CPU_BACKEND_NAME)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)
