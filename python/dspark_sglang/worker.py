"""The DSPARK worker: one decode step, readable top to bottom.

SGLang's scheduler drives it through the speculative V2 contract, with overlap
scheduling on: nothing here waits for a result of the device.

Shape legend: R requests, G = gamma drafts, T = sum of verify_lens, V vocabulary.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang import compat
from dspark_sglang.attention.cpu import CpuRaggedBackend
from dspark_sglang.attention.layout import build_plan
from dspark_sglang.config import WorkerConfig
from dspark_sglang.draft_kv import DraftKvPool
from dspark_sglang.preflight import refuse_flags
from dspark_sglang.sampling_bridge import RowSampling, accept
from dspark_sglang.verify import VerifyInput, VerifyWindow
from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.sampling.block import sample_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.server_args import ServerArgs

    from sgl_dspark.sampling.block import DraftBlock

logger = logging.getLogger(__name__)


class DsparkWorker(compat.BaseSpecWorker):
    """Drafts a block per request, verifies it with the target, commits what was accepted.

    Constructed by SGLang's scheduler with the built-in worker's keywords.
    """

    def __init__(self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker) -> None:
        super().__init__()
        self._target_worker = target_worker
        # The draft is a plain module, not a second ModelRunner, so SGLang has no draft
        # worker to allocate, capture or update.
        self._draft_worker = None
        self.model_runner = target_worker.model_runner
        self.device = torch.device(target_worker.device)
        # Whoever starts SGLang without `dspark serve` is held to the same flags.
        refuse_flags(compat.resolved(server_args))
        self.config = WorkerConfig.from_server(server_args)
        self.drafter = load_drafter(
            self.config.draft_path,
            dtype=self.model_runner.dtype,
            device=self.device,
            **compat.target_embeddings(self.model_runner),
        )
        self.gamma = self.drafter.config.gamma
        self.stride = self.gamma + 1
        compat.check_target(self.drafter.config, self.model_runner)
        self.config.check_gamma(self.gamma)
        # Under overlap a request that has reached the context end runs one step more.
        self.drafter.reserve_positions(self.model_runner.model_config.context_len + 2 * self.stride)
        self.drafter.fuse_for_serving()
        self._offsets = torch.arange(self.stride, device=self.device)
        self._pool: DraftKvPool | None = None
        self._ragged = False
        logger.info(
            "DSpark worker active: draft=%s gamma=%d head=%s shortlist=%s",
            self.config.draft_path,
            self.gamma,
            self.drafter.config.markov_head_type,
            self.config.shortlist or "full vocabulary",
        )

    def __getattr__(self, name: str) -> Any:
        # SGLang asks its model worker for members of the target worker.
        if name == "_target_worker":
            raise AttributeError(name)
        return getattr(self._target_worker, name)

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, ...]:
        """Backends whose needs decide what SGLang relays to the host; ourselves included."""
        return (self.model_runner.attn_backend, self)

    @property
    def needs_cpu_seq_lens(self) -> bool:
        """Whether committed lengths are needed on the host: the draft's plan is built there."""
        return True

    @property
    def speculative_num_draft_tokens(self) -> int:
        """Tokens per request of a full verification, anchor included."""
        return self.stride

    def alloc_memory_pool(
        self, memory_pool_config: Any = None, req_to_token_pool: Any = None, token_to_kv_pool_allocator: Any = None
    ) -> None:
        """Allocate the draft's KV beside the target's, slot for slot."""
        self.req_to_token_pool = req_to_token_pool
        self.token_to_kv_pool_allocator = token_to_kv_pool_allocator
        num_slots = compat.num_kv_slots(self.model_runner)
        self._pool = DraftKvPool(self.drafter.config, num_slots, self.model_runner.dtype, self.device)

    def init_attention_backends(self) -> None:
        """Look at the target's backend; the draft needs none, it runs from plans."""
        # SGLang's own backends verify equal lengths only, by its contract for DFlash.
        self._ragged = isinstance(self.model_runner.attn_backend, CpuRaggedBackend)

    def init_cuda_graphs(self) -> None:
        """Do nothing yet: the draft runs eagerly."""

    def get_confidence_budget_prepare(self) -> None:
        """Return None: the verify length is fixed at gamma, so nothing is planned on the host."""
        return

    def set_dspark_forced_budget_frac(self, frac: float | None) -> None:
        """Refuse SGLang's debugging override of the verify budget, which is fixed here."""
        if frac is not None:
            raise ValueError("the verify length of this worker is fixed; dspark_force_budget_frac has no effect")

    def dump_info_records(self) -> dict[str, Any] | None:
        """Return None: SGLang's own step records belong to its worker."""
        return None

    def clear_info_records(self) -> None:
        """Do nothing; see `dump_info_records`."""

    def block_accept_estimate_log_suffix(self) -> str | None:
        """Return None: blocks are verified whole, so the log line needs no estimate."""
        return None

    @torch.no_grad()
    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Callable[..., None] | None = None,
        grammar_barrier: Any = None,
        *,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """Run one scheduler step: a prefill (or a chunk of one), or draft and verify.

        Parameters
        ----------
        batch : ScheduleBatch
            Running requests; ``batch.spec_info`` carries their anchors in decode.
        on_publish : callable, optional
            Called once with the new lengths, as early as they are known.
        grammar_barrier, pp_proxy_tensors : unused
            Grammars are refused at admission, pipeline parallelism at start.
        """
        publish = on_publish or (lambda new_seq_lens: None)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, publish)
        if batch.forward_mode.is_idle():
            return self._idle(publish)
        return self._decode(batch, publish)

    def _idle(self, publish: Callable[..., None]) -> Any:
        empty = torch.empty(0, dtype=torch.int64, device=self.device)
        publish(empty)
        return compat.decode_result(
            logits_output=None, out_tokens=empty, accept_lens=empty, new_seq_lens=empty, bonus=empty, stride=self.stride
        )

    def _prefill(self, batch: ScheduleBatch, publish: Callable[..., None]) -> Any:
        slots = batch.out_cache_loc.long()
        positions = torch.cat(
            [
                torch.arange(prefix, prefix + length)
                for prefix, length in zip(batch.prefix_lens, batch.extend_lens, strict=True)
            ]
        ).to(self.device)
        result = compat.forward_target_prefill(self._target_worker, batch)
        result.new_seq_lens = batch.seq_lens
        publish(result.new_seq_lens)
        features = compat.take_features(result.logits_output)
        # Before returning: the scheduler may free or share these slots afterwards.
        self._write_context(features, positions, slots)
        result.next_draft_input = compat.draft_input(result.next_token_ids, result.new_seq_lens)
        return result

    def _decode(self, batch: ScheduleBatch, publish: Callable[..., None]) -> Any:
        anchors = batch.spec_info.bonus_tokens
        window = self._verify_window(batch)
        rows = RowSampling.of(batch.sampling_info)
        block = self._draft(batch, anchors, window, rows)
        logits_output = self._verify(batch, anchors, block, window)
        features = compat.take_features(logits_output)
        outcome = accept(block, window, logits_output.next_token_logits, rows)
        new_seq_lens = batch.seq_lens + outcome.accept_lens
        publish(new_seq_lens)
        self._commit(features, window, outcome.accept_lens)
        if batch.return_logprob:
            compat.add_logprobs(batch, logits_output, outcome.out_tokens, window)
        bonus = outcome.out_tokens.gather(1, (outcome.accept_lens - 1).unsqueeze(1)).squeeze(1)
        return compat.decode_result(
            logits_output=logits_output,
            out_tokens=outcome.out_tokens,
            accept_lens=outcome.accept_lens,
            new_seq_lens=new_seq_lens,
            bonus=bonus,
            stride=self.stride,
            verify_lens=window.verify_lens,
        )

    def _verify_window(self, batch: ScheduleBatch) -> VerifyWindow:
        """Choose verify_lens (fixed at gamma + 1) and lay out positions and slots."""
        prefix = batch.seq_lens_cpu
        limit = self.model_runner.model_config.context_len
        if self._ragged:
            # A draft at or past the context length could never be emitted.
            verify_lens_cpu = (limit - prefix).clamp(min=1, max=self.stride)
        else:
            verify_lens_cpu = torch.full_like(prefix, self.stride)
        return VerifyWindow.build(
            seq_lens=batch.seq_lens,
            prefix_lens_cpu=prefix,
            verify_lens_cpu=verify_lens_cpu,
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            offsets=self._offsets,
            max_positions=limit,
        )

    def _draft(
        self, batch: ScheduleBatch, anchors: torch.Tensor, window: VerifyWindow, rows: RowSampling
    ) -> DraftBlock:
        assert self._pool is not None
        table = self.model_runner.req_to_token_pool.req_to_token
        kv_lens = [length + self.gamma for length in window.prefix_lens]
        plan = build_plan(table, batch.req_pool_indices, [self.gamma] * len(kv_lens), kv_lens, causal=False)
        attend = self._pool.attend(plan, window.slots[:, : self.gamma].reshape(-1))
        hidden = self.drafter.block_hidden(anchors, batch.seq_lens, attend)
        return sample_block(
            self.drafter,
            hidden,
            anchors,
            rows.draft_temperatures,
            shortlist=self.config.shortlist,
            greedy=rows.greediness,
        )

    def _verify(self, batch: ScheduleBatch, anchors: torch.Tensor, block: DraftBlock, window: VerifyWindow) -> Any:
        tokens = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
        verify_input = VerifyInput.of(window.pack(tokens), window)
        batch.out_cache_loc = window.pack(window.slots)
        return compat.forward_target_verify(
            self._target_worker, batch, verify_input, lens_include_window=not self._ragged
        )

    def _commit(self, features: torch.Tensor, window: VerifyWindow, accept_lens: torch.Tensor) -> None:
        """Write the draft's context KV of the anchor and the accepted drafts."""
        positions, slots = window.pack(window.positions), window.pack(window.slots)
        if self.device.type == "cpu":
            # Fewer rows, less work; on an accelerator the selection would synchronise.
            kept = window.pack(self._offsets < accept_lens.unsqueeze(1)).nonzero().squeeze(1)
            features, positions, slots = features[kept], positions[kept], slots[kept]
        self._write_context(features, positions, slots)

    def _write_context(self, features: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        assert self._pool is not None
        self._pool.write_context(self.drafter, features, positions, slots)
