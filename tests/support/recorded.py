"""A recorder fed as the worker and SGLang feed it, and requests that exist only here."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dspark_sglang.metrics.definitions import DEFAULT_SLA
from dspark_sglang.metrics.fold import Fold
from dspark_sglang.metrics.phases import PhaseClock
from dspark_sglang.metrics.recorder import Recorder
from dspark_sglang.metrics.sheet import Sheet
from dspark_sglang.step import Step
from sgl_dspark.planner.step import Decision, StepCosts

GAMMA, SLOTS = 3, 8


class Request:
    """An answer that grows, as SGLang's request shows it."""

    def __init__(self, rid: str, slot: int | None = None) -> None:
        self.rid, self.kv = rid, SimpleNamespace(req_pool_idx=slot)
        self.output_ids: list[int] = []
        self.finished_len: int | None = None
        self.finished_reason: Any = None

    def finished(self) -> bool:
        return self.finished_reason is not None

    def end(self, kind: str, length: int | None = None) -> None:
        self.finished_len = len(self.output_ids) if length is None else length
        self.finished_reason = SimpleNamespace(to_json=lambda: {"type": kind})

    @property
    def received(self) -> int:
        """Tokens that the client has got."""
        return len(self.output_ids) if self.finished_len is None else self.finished_len


class Engine:
    """A recorder and what it has counted."""

    def __init__(self, sla: Sequence[float] = DEFAULT_SLA) -> None:
        self.recorder = Recorder(SLOTS, PhaseClock())
        self.sheet = Sheet(GAMMA, sla)
        self.fold = Fold(self.recorder, self.sheet)
        self.number = 0

    def value(self, name: str) -> Any:
        self.fold.fold()
        return self.sheet.view(name).copy()

    def delivered(self) -> float:
        return float(self.value("dspark_accepted_tokens_total").sum() + self.value("dspark_bonus_tokens_total").sum())

    def prefill(self, requests: Sequence[Request], skipped: Request | None = None) -> None:
        """Sample the first token, or the next after a retraction, of all but ``skipped``."""
        for request in requests:
            if request is not skipped:
                request.output_ids.append(0)
        self.recorder.streamed(requests, skipped)

    def launch(
        self,
        requests: Sequence[Request],
        lens: Sequence[int],
        *,
        drafts: bool = True,
        policy: str = "adaptive",
        tiers: np.ndarray | None = None,
        expected: Sequence[float] | None = None,
        planned: float = float("nan"),
    ) -> Step:
        self.number += 1
        budget = sum(lens)
        costs = StepCosts(0.01, np.zeros(len(requests) * GAMMA + 1), tiers=tiers)
        slots = np.array([request.kv.req_pool_idx for request in requests])
        step = Step(
            self.number,
            list(requests),
            slots,
            slots,
            np.zeros(len(requests), bool),
            np.full(len(requests), GAMMA),
            0,
            Decision(self.number, drafts, budget, expected_tokens=planned),
            costs,
            0.0,
            policy,
        )
        step.lens = np.array(lens)
        step.expected = None if expected is None else np.array(expected, np.float32)
        self.recorder.decided(step)
        return step

    def verdict(self, step: Step, accepted: Sequence[int], lost: bool = False) -> None:
        """Hand the verdict over and let the requests grow, as SGLang's result processing does."""
        alive = np.array([not request.finished() for request in step.requests])
        if not lost:
            self.recorder.verdict(step, np.array(accepted), alive)
        for request, more, runs in zip(step.requests, accepted, alive, strict=True):
            if runs:
                request.output_ids += [0] * (more + 1)

    def stream(self, step: Step, ended: Sequence[Request] = ()) -> None:
        for request in ended:
            self.recorder.finished(request.rid)
        self.recorder.streamed(list(step.requests))
