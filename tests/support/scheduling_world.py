"""A worker's scheduler and requests that exist only here; needs SGLang."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dspark_sglang.config import SchedulingConfig
from dspark_sglang.knowledge import Knowledge
from dspark_sglang.sampling_bridge import RowSampling
from dspark_sglang.scheduling import VerifyScheduler
from dspark_sglang.step import Step
from sgl_dspark.calibration.records import RecordSet, from_wire
from sgl_dspark.planner.config import PlannerConfig
from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sps.fit import Probe
from sgl_dspark.sps.store import Fingerprint

GAMMA, CONTEXT, END = 3, 64, 9


class Request:
    def __init__(self, prompt: int = 10, limit: int | None = None, ignore_eos: bool = False) -> None:
        self.over = False
        self.is_retracted = False
        self.origin_input_ids = [0] * prompt
        self.sampling_params = SimpleNamespace(max_new_tokens=limit, ignore_eos=ignore_eos)

    def finished(self) -> bool:
        return self.over


class World:
    """A scheduler and the requests that it serves."""

    def __init__(self, tmp_path: Path, config: PlannerConfig, *, ragged: bool = True, priced: bool = True) -> None:
        (tmp_path / "model.safetensors").write_bytes(b"draft")
        self.pool = SimpleNamespace(
            req_to_token=torch.zeros(9, CONTEXT), req_generation=torch.ones(9, dtype=torch.int64)
        )
        model = SimpleNamespace(context_len=CONTEXT, hf_eos_token_id={END})
        runner: Any = SimpleNamespace(req_to_token_pool=self.pool, model_config=model)
        self.knowledge = Knowledge(SchedulingConfig(config, profile="off"), GAMMA, str(tmp_path), {})
        if priced:
            probes = [Probe("verify", 1, tokens, 32, 0.01 + 1e-5 * tokens) for tokens in (2, 4, 16, 32)]
            self.knowledge.start(lambda: probes, Fingerprint({}), tmp_path / "unused")
        self.scheduler = VerifyScheduler(config, self.knowledge, runner, gamma=GAMMA, ragged=ragged)
        self.requests = [Request(), Request()]

    def begin(self, lengths: tuple[int, ...] = (20, 30)) -> Step:
        count = len(self.requests)
        batch: Any = SimpleNamespace(
            reqs=self.requests,
            req_pool_indices_cpu=torch.arange(1, count + 1),
            seq_lens_cpu=torch.tensor(lengths[:count]),
        )
        return self.scheduler.begin(batch, RowSampling.greedy(count, torch.device("cpu")))

    def step(
        self,
        drafts: list[list[int]],
        logit: float = 3.0,
        lengths: tuple[int, ...] = (20, 30),
        emitted: list[list[int]] | None = None,
    ) -> list[int]:
        """Run a step up to its verdict and return the verify lengths."""
        step = self.begin(lengths)
        block = None
        if step.drafts:
            logits = torch.full((len(drafts), GAMMA), logit)
            block = DraftBlock(torch.tensor(drafts), logits)
        lens = self.scheduler.verify_lens(step, block).tolist()
        tokens = emitted or [[0]] * len(step.slots)
        padded = [row + [END] * (GAMMA + 1 - len(row)) for row in tokens]
        verdict: Any = SimpleNamespace(
            out_tokens=torch.tensor(padded), accept_lens=torch.tensor([len(row) for row in tokens])
        )
        self.scheduler.end(step, block, verdict)
        return list(lens)

    def records(self) -> RecordSet:
        return from_wire(self.scheduler.rounds.reply(0))[0]


PLAIN_DRAFTS = [[1, 2, 3], [4, 5, 6]]
