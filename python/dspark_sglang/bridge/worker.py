"""SGLang's own DSPARK worker, planned by us. Its draft model, kernels, graphs and caches stay as they are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.srt.layers.dp_attention import get_dp_tp_group
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.dspark_components.dspark_planner import ragged_capture_num_tokens
from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2

from dspark_sglang import compat
from dspark_sglang.bridge.budget import BridgeBudget
from dspark_sglang.bridge.conditions import bridge_fingerprint, refuse_backend, refuse_settings
from dspark_sglang.bridge.head import HeadCalibration
from dspark_sglang.bridge.knowledge import BridgeKnowledge
from dspark_sglang.bridge.profile import SelfProfile
from dspark_sglang.bridge.scheduler import BridgeScheduler
from dspark_sglang.bridge.seam import check_seam
from dspark_sglang.config import SchedulingConfig, local_folder
from dspark_sglang.fingerprint import default_profile
from dspark_sglang.metrics import recording
from dspark_sglang.rank_sync import RankSync
from dspark_sglang.selection import BRIDGE
from dspark_sglang.switches import run_test_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)


class BridgeWorker(DSparkWorkerV2):
    """`DSparkWorkerV2` whose verify budget is decided by `BridgeScheduler`.

    Constructed by SGLang's scheduler with the built-in worker's keywords.

    Raises
    ------
    LaunchError
        If SGLang's worker is not the one that this was written for.
    ConfigError
        If a setting would leave nothing to plan; names it.
    """

    def __init__(
        self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker, **others: Any
    ) -> None:
        check_seam()
        refuse_settings()
        # Before the base class asks for anything: what it lacks it looks up in the target worker.
        self.bridge: BridgeBudget | None = None
        self.scheduler: BridgeScheduler | None = None
        self._target_path = compat.resolved(server_args).model_path
        super().__init__(
            server_args=server_args, gpu_id=gpu_id, nccl_port=nccl_port, target_worker=target_worker, **others
        )
        # A stage without the draft, or a server that only prefills, decodes nothing.
        self._plans = self._hosts_draft and not self._is_pd_prefill
        if self._plans:
            self._head_calibration = HeadCalibration(self.draft_model.confidence_head, self.gamma, self.device)

    @property
    def max_requests(self) -> int:
        """Most requests that run at once."""
        return compat.num_request_rows(self.model_runner) - 1

    def init_attention_backends(self) -> None:
        """Look at the target's backend before graphs are captured on it."""
        super().init_attention_backends()
        if self._plans:
            refuse_backend(self.model_runner.attn_backend)

    def init_cuda_graphs(self) -> None:
        """Begin to plan: the target's graphs are there, so it is known which sizes they have."""
        super().init_cuda_graphs()
        if not self._plans:
            return
        config = SchedulingConfig.from_environment()
        spec = get_spec()
        draft_path = local_folder(
            spec.speculative_draft_model_path or self._target_path, spec.speculative_draft_model_revision
        )
        tiers = ragged_capture_num_tokens(model_runner=self.model_runner)
        identity = {"target": Path(self._target_path).name, "draft": Path(draft_path).name, "worker": BRIDGE}
        stored = default_profile(self._target_path, draft_path)
        group = get_dp_tp_group()
        knowledge = BridgeKnowledge(
            config,
            self.gamma,
            draft_path,
            identity,
            tiers,
            fingerprint=bridge_fingerprint(self, self._target_path, draft_path, tiers),
            path=stored.with_name(stored.stem + ".bridge.json"),
            keep=get_parallel().tp_rank == 0,
        )
        self.scheduler = BridgeScheduler(
            config.planner,
            knowledge,
            self.model_runner,
            gamma=self.gamma,
            head=self._head_calibration,
            profile=SelfProfile(self.gamma, knowledge.tiers, knowledge.known),
            ranks=RankSync(group.cpu_group, group.world_size),
        )
        self.bridge = BridgeBudget(self.scheduler)
        self.bridge.install(self._verify_planner)
        recording.start(self, self.scheduler, head=type(self.draft_model.markov_head).__name__)
        run_test_hook(self)
        logger.info("DSpark bridge active: SGLang's worker, planned by sgl-dspark; graph sizes: %s", tiers or "none")

    def get_confidence_budget_prepare(self) -> Callable[[Any, Any], None] | None:
        """Return what decides a step ahead of its launch, under overlap."""
        if self.bridge is None:
            return super().get_confidence_budget_prepare()
        return self._prepare_budget

    def _prepare_budget(self, batch: ScheduleBatch, future_map: Any) -> None:
        assert self.bridge is not None
        self.bridge.prepare(self._verify_planner, batch, future_map)

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Callable[..., None] | None = None,
        grammar_barrier: Any = None,
        *,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """Run one scheduler step as SGLang's worker does, and note what came of it."""
        bridge, scheduler = self.bridge, self.scheduler
        if bridge is None or scheduler is None:
            return super().forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors=pp_proxy_tensors
            )
        # Verifying changes the batch's mode.
        mode, prefill = batch.forward_mode, batch.forward_mode.is_extend() or batch.is_extend_in_batch
        bridge.begin(batch)
        scheduler.before_launch()
        result = super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors=pp_proxy_tensors)
        if prefill:
            scheduler.interrupt(sum(batch.extend_lens or ()))
        elif mode.is_idle():
            scheduler.interrupt()
        else:
            scheduler.returned(result)
        return result

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: Sequence[int], batch_size: int = 0) -> None:
        """Learn from a step's verdict, which SGLang hands over one step later."""
        if self.scheduler is not None:
            self.scheduler.learn(num_correct_drafts_per_req)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """Note that a request of the step being processed has ended."""
        super().note_request_finished(rid=rid, natural_stop=natural_stop)
        recording.finished(rid)

    def configure(self, numbers: dict[str, int | float]) -> None:
        """Switch the verify policy; see `BridgeScheduler.configure`."""
        if self.scheduler is not None:
            self.scheduler.configure(numbers)

    def dump_info_records(self) -> dict[str, Any] | None:
        """Return the scheduling state; SGLang's own records, where it keeps any, are in ``upstream``."""
        own = super().dump_info_records()
        if self.scheduler is None:
            return own
        shown = self.scheduler.state()
        return shown if own is None else {**shown, "upstream": own}

    def clear_info_records(self) -> None:
        """Start the totals of the scheduling state over."""
        super().clear_info_records()
        if self.scheduler is not None:
            self.scheduler.clear_totals()
