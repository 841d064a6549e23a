"""The parts of a decode step that touch tensors: layout, draft, acceptance, commit.

The worker puts them in order; start-up times the very same ones, so that the step-time model prices what serves.

Shape legend: R requests, W = gamma + 1 columns, T = sum of verify_lens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dspark_sglang.attention.layout import build_plan
from dspark_sglang.kernels.draft_block import sample_block
from dspark_sglang.sampling_bridge import RowSampling, accept, spread, without_drafts
from dspark_sglang.verify import BlockLayout, VerifyInput, VerifyWindow

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from dspark_sglang.adjust.step import StepAdjustments
    from dspark_sglang.device_window import DeviceWindow
    from dspark_sglang.draft_kv import DraftKvPool
    from sgl_dspark.model.drafter import Drafter
    from sgl_dspark.sampling.block import DraftBlock
    from sgl_dspark.sampling.rejection import Verdict


class StepParts:
    """Drafter, pools and their sizes, and what a step does with them.

    Parameters
    ----------
    drafter : Drafter
    pool : DraftKvPool
        The draft's KV, slot for slot beside the target's.
    runner : ModelRunner
        Of the target.
    shortlist : int or None
        See `WorkerConfig`.
    """

    def __init__(self, drafter: Drafter, pool: DraftKvPool, runner: ModelRunner, shortlist: int | None) -> None:
        self.drafter, self.runner = drafter, runner
        self.gamma = drafter.config.gamma
        self.stride = self.gamma + 1
        self.pool, self.shortlist = pool, shortlist
        self.table = runner.req_to_token_pool.req_to_token
        self._offsets = torch.arange(self.stride, device=self.table.device)
        self._device = self.table.device

    def layout(self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, request_rows: torch.Tensor) -> BlockLayout:
        """Look up where anchor and drafts go."""
        return BlockLayout.build(
            seq_lens=seq_lens,
            prefix_lens_cpu=seq_lens_cpu,
            req_pool_indices=request_rows,
            req_to_token=self.table,
            offsets=self._offsets,
            max_positions=self.runner.model_config.context_len,
        )

    def draft(
        self,
        layout: BlockLayout,
        anchors: torch.Tensor,
        seq_lens: torch.Tensor,
        request_rows: torch.Tensor,
        rows: RowSampling,
        drafted: torch.Tensor | None = None,
        adjustments: StepAdjustments | None = None,
    ) -> DraftBlock:
        """Draft the block of every request, or of those in ``drafted`` (int64, ascending)."""
        places = None if drafted is None else drafted.tolist()
        slots, prefix_lens, own = layout.slots, layout.prefix_lens, rows
        if drafted is not None and places is not None:
            anchors, seq_lens, request_rows = anchors[drafted], seq_lens[drafted], request_rows[drafted]
            slots, prefix_lens, own = slots[drafted], [prefix_lens[r] for r in places], rows.select(drafted)
        kv_lens = [length + self.gamma for length in prefix_lens]
        plan = build_plan(self.table, request_rows, [self.gamma] * len(kv_lens), kv_lens, causal=False)
        attend = self.pool.attend(plan, slots[:, : self.gamma].reshape(-1))
        hidden = self.drafter.block_hidden(anchors, seq_lens, attend)
        block = sample_block(
            self.drafter,
            hidden,
            anchors,
            own.draft_temperatures,
            shortlist=self.shortlist,
            uniforms=own.uniforms(len(kv_lens), self.gamma),
            greedy=own.greediness,
            adjustment=None if adjustments is None else adjustments.for_draft(places),
            by_token=own.seeded is not None,
        )
        return block if drafted is None else spread(block, drafted, len(layout.prefix_lens))

    def verify_input(self, anchors: torch.Tensor, block: DraftBlock | None, window: VerifyWindow) -> VerifyInput:
        """Flatten the anchors and the drafts that are verified."""
        if block is None:
            return VerifyInput.of(anchors, window)
        tokens = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
        return VerifyInput.of(window.pack(tokens), window)

    def accept(
        self,
        block: DraftBlock | None,
        window: VerifyWindow | DeviceWindow,
        logits: torch.Tensor,
        rows: RowSampling,
        uniforms: torch.Tensor | None = None,
    ) -> Verdict:
        """Accept a prefix of each block and emit one token more; without drafts, just emit one."""
        if block is None:
            assert isinstance(window, VerifyWindow)
            return without_drafts(window, logits, rows, self.stride)
        return accept(block, window, logits, rows, uniforms)

    def commit(self, features: torch.Tensor, window: VerifyWindow, accept_lens: torch.Tensor) -> None:
        """Write the draft's context KV of the anchor and the accepted drafts."""
        positions, slots = window.pack(window.positions), window.pack(window.slots)
        if self._device.type == "cpu" and positions.numel() > accept_lens.numel():
            # Fewer rows, less work; on an accelerator the selection would synchronise.
            kept = window.pack(self._offsets < accept_lens.unsqueeze(1)).nonzero().squeeze(1)
            features, positions, slots = features[kept], positions[kept], slots[kept]
        self.write_context(features, positions, slots)

    def write_context(self, features: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the draft's context KV of tokens whose target features are known."""
        self.pool.write_context(self.drafter, features, positions, slots)
