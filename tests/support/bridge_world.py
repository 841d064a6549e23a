"""SGLang's own verify planner and relay with our budget in them, and requests that exist only here; needs SGLang."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.managers import overlap_utils
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.dspark import DSparkConfidenceHead
from sglang.srt.speculative.dspark_components import dspark_planner
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from dspark_sglang.bridge.budget import BridgeBudget
from dspark_sglang.bridge.head import HeadCalibration
from dspark_sglang.bridge.knowledge import BridgeKnowledge
from dspark_sglang.bridge.profile import SelfProfile
from dspark_sglang.bridge.scheduler import BridgeScheduler
from dspark_sglang.config import SchedulingConfig
from dspark_sglang.rank_sync import RankSync
from sgl_dspark.planner.config import PlannerConfig
from sgl_dspark.sps.fit import Probe, fit
from sgl_dspark.sps.store import Fingerprint

GAMMA, ROWS, CONTEXT, END = 3, 12, 64, 9
# A verify token costs 2 ms on top of 10 ms, so that trimming pays and K is neither 0 nor everything.
PRICED = [Probe("verify", 1, tokens, 0, 0.01 + 0.002 * tokens) for tokens in (1, 2, 4, 8, 16, 32, 48)]


class Request:
    """A request as far as planning looks at one."""

    def __init__(self, top_k: int = 1) -> None:
        self.over = self.is_retracted = False
        self.origin_input_ids, self.output_ids = [0] * 10, [0]
        self.grammar = self.custom_logit_processor = None
        self.sampling_params = SimpleNamespace(
            top_k=top_k,
            frequency_penalty=0.0,
            presence_penalty=0.0,
            repetition_penalty=1.0,
            min_new_tokens=0,
            sampling_seed=None,
            logit_bias=None,
        )

    def finished(self) -> bool:
        return self.over


def _patch_settings(patch: pytest.MonkeyPatch, overlap: bool) -> None:
    """Give SGLang's planner the settings of a server that verifies ragged blocks."""
    patch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
    spec = SimpleNamespace(
        speculative_dspark_align_verify_tokens_to_graph_tier=False,
        speculative_dspark_confidence_sts_path=None,
        speculative_dspark_sps_table_path=None,
    )
    patch.setattr(dspark_planner, "get_spec", lambda: spec)
    schedule = SimpleNamespace(disable_overlap_schedule=not overlap, max_running_requests=8)
    patch.setattr(dspark_planner, "get_schedule", lambda: schedule)
    patch.setattr(dspark_planner, "is_dp_attention_enabled", lambda: False)
    patch.setattr(overlap_utils, "_is_cuda", False)


def _knowledge(config: PlannerConfig, tmp_path: Path, priced: bool) -> BridgeKnowledge:
    found = BridgeKnowledge(
        # Steps here take microseconds: what they take must not move the prices.
        SchedulingConfig(config, calibration="off", profile="off", online=False),
        GAMMA,
        str(tmp_path),
        {"target": "t", "draft": "d"},
        None,
        fingerprint=Fingerprint({}),
        path=tmp_path / "unused",
    )
    if priced:
        found.adopt(PRICED)
    return found


class Ring:
    """Stands in for the copies that SGLang makes on an accelerator: a pinned ring of three steps of the whole pool."""

    def __init__(self, world: BridgeWorld) -> None:
        self.world = world
        self.arrived = True
        relay = world.future_map.confidence_relay
        relay.conf_ring = torch.empty((3, ROWS, GAMMA))
        relay.gen_ring = torch.zeros((3, ROWS), dtype=torch.int64)
        relay.copy_done = [SimpleNamespace(query=lambda: self.arrived)] * 3
        world.future_map.fwd_prepare_d2h_stream = object()
        world.future_map.publish_ready = object()

    def copy(self) -> None:
        relay = self.world.future_map.confidence_relay
        slot = relay.ring_pos % 3
        relay.conf_ring[slot].copy_(relay.confidence_buf)
        relay.gen_ring[slot].copy_(self.world.pool.req_generation)
        relay.ring_pos += 1


class BridgeWorld:
    """One rank: SGLang's planner, made by its own constructor, and our budget in its place.

    Parameters
    ----------
    ring : bool
        Relay as on CUDA, readable two steps later; else by one buffer, readable one step later.
    overlap : bool
        Decide ahead of the launch; else in the middle of it.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        tmp_path: Path,
        config: PlannerConfig | None = None,
        *,
        ring: bool = True,
        overlap: bool = True,
        priced: bool = True,
        profile: SelfProfile | None = None,
        ranks: RankSync | None = None,
    ) -> None:
        config = config or PlannerConfig()
        _patch_settings(patch, overlap)
        self.pool = SimpleNamespace(
            req_to_token=torch.zeros(ROWS, CONTEXT), req_generation=torch.ones(ROWS, dtype=torch.int64)
        )
        self.runner: Any = SimpleNamespace(
            req_to_token_pool=self.pool,
            model_config=SimpleNamespace(context_len=CONTEXT, hf_eos_token_id={END}),
            decode_cuda_graph_runner=None,
        )
        self.head = DSparkConfidenceHead(hidden_size=4, markov_rank=0, with_markov=False)
        self.planner = dspark_planner.DSparkVerifyPlanner(
            draft_model=SimpleNamespace(confidence_head=self.head),
            gamma=GAMMA,
            model_runner=self.runner,
            device="cpu",
            tp_rank=0,
            verify_num_draft_tokens=GAMMA + 1,
            tp_sync=SimpleNamespace(sync=lambda site, values: values),
        )
        knowledge = _knowledge(config, tmp_path, priced)
        self.scheduler = BridgeScheduler(
            config,
            knowledge,
            self.runner,
            gamma=GAMMA,
            head=HeadCalibration(self.head, GAMMA, "cpu"),
            profile=profile or SelfProfile(GAMMA, None, fit(PRICED)),
            ranks=ranks,
        )
        self.budget = BridgeBudget(self.scheduler)
        self.budget.install(self.planner)
        self.future_map = FutureMap(
            torch.device("cpu"), SpeculativeAlgorithm.DSPARK, self.pool, needs_confidence_relay=True
        )
        self.overlap = overlap
        self.requests: dict[int, Request] = {1: Request(), 2: Request()}
        self.ring = Ring(self) if ring else None

    def batch(self) -> Any:
        """Give a decode batch of the requests that run, by row of the pool."""
        rows = torch.tensor(sorted(self.requests))
        spec_info = SimpleNamespace(future_indices=rows, verify_token_budget=None)
        return SimpleNamespace(
            reqs=[self.requests[row] for row in rows.tolist()],
            batch_size=lambda: len(rows),
            req_pool_indices=rows,
            req_pool_indices_cpu=rows,
            seq_lens_cpu=torch.full((len(rows),), 20),
            spec_info=spec_info,
            forward_mode=ForwardMode.DECODE,
            is_extend_in_batch=False,
            spec_verify_tier_num_tokens=-1,
        )

    def seat(self, row: int, request: Request | None = None) -> None:
        """Give a row of the pool to a new request, as SGLang's allocation does."""
        self.pool.req_generation[row] += 1
        self.requests[row] = request or Request()

    def step(self, confidence: list[list[float]] | np.ndarray, correct: list[int] | None = None) -> tuple[Any, Any]:
        """Run a decode step as SGLang's worker does; returns K and the verify lengths."""
        batch, scheduler = self.batch(), self.scheduler
        if self.overlap:
            self.budget.prepare(self.planner, batch, self.future_map)
        found = torch.as_tensor(np.asarray(confidence, np.float32))
        self.budget.begin(batch)
        scheduler.before_launch()
        chosen = {"prefix_lens": batch.seq_lens_cpu, "req_pool_indices": batch.req_pool_indices, "confidence": found}
        k = self.planner.resolve_verify_token_budget(draft_input=batch.spec_info, **chosen)
        layout = self.planner.schedule_layout(device=torch.device("cpu"), budget=k, **chosen)
        self.future_map.confidence_relay.scatter(batch.req_pool_indices, found)
        if self.ring is not None:
            self.ring.copy()
        lens = None if layout is None else layout.verify_lens
        emitted = torch.zeros(len(batch.reqs) * (GAMMA + 1), dtype=torch.int64)
        scheduler.returned(SimpleNamespace(cap_lens=lens, next_token_ids=emitted))
        if correct is not None:
            scheduler.learn(correct)
        return k, None if lens is None else lens.tolist()
