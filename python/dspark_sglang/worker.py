"""The DSPARK worker: one decode step, readable top to bottom.

SGLang's scheduler drives it through the speculative V2 contract, with overlap
scheduling on: nothing here waits for a result of the device, but for steps that the host ranks on an accelerator.

Shape legend: R requests, G = gamma drafts, T = sum of verify_lens, V vocabulary.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang import compat, device_decode
from dspark_sglang.adjust.adjuster import Adjuster
from dspark_sglang.attention.cpu import CpuRaggedBackend
from dspark_sglang.attention.cuda import CudaRaggedBackend
from dspark_sglang.config import SchedulingConfig, WorkerConfig
from dspark_sglang.device_path import DevicePath, build_device_path
from dspark_sglang.draft_kv import DraftKvPool
from dspark_sglang.fingerprint import default_profile, worker_fingerprint
from dspark_sglang.graphs import sent_to
from dspark_sglang.knowledge import Knowledge
from dspark_sglang.metrics import recording
from dspark_sglang.packed_weights import row_sizes
from dspark_sglang.parts import StepParts
from dspark_sglang.preflight import refuse_flags
from dspark_sglang.probes import measure_step_times
from dspark_sglang.rank_sync import RankSync
from dspark_sglang.running import Running
from dspark_sglang.sampling_bridge import RowSampling
from dspark_sglang.scheduling import VerifyScheduler
from dspark_sglang.switches import run_test_hook
from dspark_sglang.worker_contract import ContractWorker
from sgl_dspark.model.checkpoint import load_drafter

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.server_args import ServerArgs

    from dspark_sglang.device_window import DeviceWindow
    from dspark_sglang.verify import VerifyWindow
    from sgl_dspark.sampling.rejection import Verdict

logger = logging.getLogger(__name__)


class DsparkWorker(ContractWorker):
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
        resolved = compat.resolved(server_args)
        refuse_flags(resolved)
        self._target_path, self._tensor_parallel = resolved.model_path, resolved.tp_size
        self.seed = int(resolved.random_seed or 0)
        self.device_path: DevicePath | None = None
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
    def max_requests(self) -> int:
        """Most requests that run at once."""
        return compat.num_request_rows(self.model_runner) - 1

    @property
    def num_slots(self) -> int:
        """KV slots of the target."""
        return compat.num_kv_slots(self.model_runner)

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
        pool = DraftKvPool(self.drafter.config, self.num_slots, self.model_runner.dtype, self.device)
        self.parts = StepParts(self.drafter, pool, self.model_runner, self.config.shortlist)
        self.adjuster = Adjuster(
            self.model_runner, self.stride, self.device, partial(self.count_fallback, "answer_not_followed")
        )

    def count_fallback(self, name: str) -> None:
        """Count a fallback by its name in docs/scheduling.md."""
        self.scheduler.ledger.fallbacks[name] += 1

    def init_attention_backends(self) -> None:
        """Look at the target's backend; the draft needs none, it runs from plans."""
        # SGLang's own backends verify equal lengths only, by its contract for DFlash.
        self._ragged = isinstance(self.model_runner.attn_backend, CpuRaggedBackend | CudaRaggedBackend)
        scheduling = SchedulingConfig.from_environment()
        identity = {"target": Path(self._target_path).name, "draft": Path(self.config.draft_path).name}
        sizes = row_sizes(self.model_runner.model, self.max_requests * self.stride)
        self.knowledge = Knowledge(scheduling, self.gamma, self.config.draft_path, identity, sizes)
        self.scheduler = VerifyScheduler(
            scheduling.planner,
            self.knowledge,
            self.model_runner,
            gamma=self.gamma,
            ragged=self._ragged,
            ranks=RankSync(*compat.tensor_parallel_ranks()),
        )

    def init_cuda_graphs(self) -> None:
        """Capture our own graphs where there is CUDA, and measure the step times that planning weighs."""
        if self._ragged:
            self.use_device_path(build_device_path(self))
            fingerprint = worker_fingerprint(self, self._target_path, self._tensor_parallel)
            profile = default_profile(self._target_path, self.config.draft_path)
            self.knowledge.start(lambda: measure_step_times(self), fingerprint, profile)
        recording.start(self, self.scheduler, str(self.drafter.config.markov_head_type))
        run_test_hook(self)

    def use_device_path(self, path: DevicePath | None) -> None:
        """Rank on the device from now on and capture the graphs for it; None leaves ranking to the host."""
        self.device_path = path
        if path is not None:
            path.capture()
            self.knowledge.graph_tiers = path.tiers

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Learn from a step's verdict, which SGLang hands over one step later."""
        self.scheduler.learn(num_correct_drafts_per_req)

    def note_request_finished(self, *, rid: str, natural_stop: bool = False) -> None:
        """Note for the metrics that a request of the step being processed has ended."""
        recording.finished(rid)

    def configure(self, numbers: dict[str, int | float]) -> None:
        """Switch the verify policy; see `VerifyScheduler.configure`."""
        self.scheduler.configure(numbers)

    def dump_info_records(self) -> dict[str, Any]:
        """Return the scheduling state; ``GET /dspark/state`` shows it, and SGLang's ``/server_info``."""
        return self.scheduler.state()

    def clear_info_records(self) -> None:
        """Start the totals of the scheduling state over."""
        self.scheduler.clear_totals()

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
        grammar_barrier : callable, optional
            Advances grammars over what the last step emitted; called before they are read.
        pp_proxy_tensors : unused
            Pipeline parallelism is refused at start.
        """
        publish = on_publish or (lambda new_seq_lens: None)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, publish)
        if batch.forward_mode.is_idle():
            return self.idle(publish)
        return self._decode(batch, publish, grammar_barrier)

    def _prefill(self, batch: ScheduleBatch, publish: Callable[..., None]) -> Any:
        self.scheduler.interrupt(sum(batch.extend_lens))
        self._flush()
        slots = batch.out_cache_loc.long()
        positions = torch.cat(
            [
                torch.arange(prefix, prefix + length)
                for prefix, length in zip(batch.prefix_lens, batch.extend_lens, strict=True)
            ]
        )
        positions = sent_to(positions, self.device)
        self.adjuster.before_prefill(batch)
        result = compat.forward_target_prefill(self._target_worker, batch)
        self.adjuster.after_prefill(batch, result.next_token_ids)
        result.new_seq_lens = batch.seq_lens
        publish(result.new_seq_lens)
        features = compat.take_features(result.logits_output)
        # Before returning: the scheduler may free or share these slots afterwards.
        self.parts.write_context(features, positions, slots)
        result.next_draft_input = compat.draft_input(result.next_token_ids, result.new_seq_lens)
        return result

    def _decode(self, batch: ScheduleBatch, publish: Callable[..., None], barrier: Callable[[], None] | None) -> Any:
        adjustments = self.adjuster.begin(batch, barrier)
        rows = RowSampling.of(batch.sampling_info, adjustments, batch.reqs)
        layout = self.parts.layout(batch.seq_lens, batch.seq_lens_cpu, batch.req_pool_indices)
        step = self.scheduler.begin(batch, rows)
        plan = device_decode.plan_for(self, step, adjusted=adjustments is not None)
        if plan is not None:
            return device_decode.run(self, batch, layout, rows, step, plan, publish)
        self._flush()
        anchors, block = batch.spec_info.bonus_tokens, None
        if step.drafts:
            block = self.parts.draft(
                layout, anchors, batch.seq_lens, batch.req_pool_indices, rows, step.drafted, adjustments
            )
        window = layout.window(self.scheduler.verify_lens(step, block))
        if self.device_path is None:
            verify_input = self.parts.verify_input(anchors, block, window)
            batch.out_cache_loc = window.pack(window.slots)
            logits_output = compat.forward_target_verify(
                self._target_worker, batch, verify_input, lens_include_window=not self._ragged
            )
            features = compat.take_features(logits_output)
        else:
            running = Running(anchors, batch.seq_lens, batch.req_pool_indices, layout, rows, step.kinds)
            logits_output, features = self.device_path.verify_from_host(running, window, block)
        if adjustments is not None:
            adjustments.apply(logits_output.next_token_logits, window, block)
        outcome = self.parts.accept(block, window, logits_output.next_token_logits, rows)
        publish(batch.seq_lens + outcome.accept_lens)
        if adjustments is not None:
            adjustments.commit(outcome.out_tokens, outcome.accept_lens)
        self.parts.commit(features, window, outcome.accept_lens)
        self.scheduler.end(step, block, outcome)
        return self.result(batch, logits_output, outcome, window)

    def _flush(self) -> None:
        if self.device_path is not None:
            self.device_path.flush()

    def result(
        self, batch: ScheduleBatch, logits_output: Any, outcome: Verdict, window: VerifyWindow | DeviceWindow
    ) -> Any:
        """Return a decode step's result in SGLang's contract."""
        if batch.return_logprob:
            compat.add_logprobs(batch, logits_output, outcome.out_tokens, window)
        return compat.decode_result(
            logits_output=logits_output,
            out_tokens=outcome.out_tokens,
            accept_lens=outcome.accept_lens,
            new_seq_lens=batch.seq_lens + outcome.accept_lens,
            bonus=outcome.out_tokens.gather(1, (outcome.accept_lens - 1).unsqueeze(1)).squeeze(1),
            stride=self.stride,
            verify_lens=window.verify_lens,
        )
