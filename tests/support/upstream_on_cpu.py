"""Lets SGLang's own DSPARK worker run on a CPU, in greedy steps of the fixture pair; a plugin for tests, never served.

Upstream's worker is written for accelerators. What stops it on a CPU is little, and none of it is what the bridge
touches: the device gate, a stream, a Triton kernel that looks up slots, and an attention backend for its layouts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

GROUP, NAME = "sglang.srt.plugins", "upstream_on_cpu"


def install(folder: Path) -> str:
    """Write package metadata into ``folder`` that makes this a plugin; returns what to put on ``PYTHONPATH``."""
    info = folder / f"{NAME}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = tests.support.{NAME}:register\n")
    return str(folder)


def register() -> None:
    """Patch what stops upstream's worker; SGLang calls this in every process."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from dspark_sglang.attention import CPU_BACKEND_NAME
    from dspark_sglang.attention.register import register_backends
    from dspark_sglang.platforms.cpu import DsparkCpuPlatform

    register_backends()
    ATTENTION_BACKENDS[CPU_BACKEND_NAME] = _backend
    HookRegistry.register("sglang.srt.arg_groups.speculative_hook._handle_dspark", _pass_the_gate, HookType.AROUND)
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]
    DsparkCpuPlatform.get_speculative_cache_locs_fn = lambda self: _slots  # type: ignore[method-assign]


def _pass_the_gate(original: Any, server_args: Any) -> Any:
    from sglang.srt.arg_groups import speculative_hook

    from dspark_sglang.hooks import _DeviceAnswer

    view = speculative_hook.resolving_view
    speculative_hook.resolving_view = lambda args: _DeviceAnswer(view(args), "cuda")
    try:
        return original(server_args)
    finally:
        speculative_hook.resolving_view = view


def _slots(
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: Any,
) -> torch.Tensor:
    """Look up the slots of each request's window, one after the other, as SGLang's kernel does."""
    found = torch.zeros(batch_size * draft_token_num, dtype=torch.int64)
    windows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    packed = torch.cat([req_to_token[row, start:end] for row, start, end in windows])
    found[: packed.numel()] = packed
    return found


def _backend(runner: Any) -> Any:
    from sglang.srt.layers.radix_attention import AttentionType

    from dspark_sglang.attention.cpu import CpuRaggedBackend
    from dspark_sglang.attention.layout import build_plan

    class UpstreamLayouts(CpuRaggedBackend):
        """Attends by SGLang's layouts: ragged or whole verifications, and blocks of its draft, which see themselves."""

        supports_ragged_verify_graph = True

        def init_forward_metadata(self, forward_batch: Any) -> None:
            if not forward_batch.forward_mode.is_target_verify():
                super().init_forward_metadata(forward_batch)
                return
            info, prefix = forward_batch.spec_info, forward_batch.seq_lens.tolist()
            layout = info.ragged_verify_layout
            lens = [info.draft_token_num] * len(prefix) if layout is None else layout.verify_lens.tolist()
            kv_lens = [p + q for p, q in zip(prefix, lens, strict=True)]
            rows, table = forward_batch.req_pool_indices, self.req_to_token_pool.req_to_token
            self._plan = build_plan(table, rows, lens, kv_lens, causal=not runner.is_draft_worker)

        def _forward(self, q: Any, k: Any, v: Any, layer: Any, *others: Any) -> torch.Tensor:
            # The draft's plan is not causal; its layers need not say so again.
            layer.attn_type = AttentionType.DECODER
            return super()._forward(q, k, v, layer, *others)

    return UpstreamLayouts(runner)
