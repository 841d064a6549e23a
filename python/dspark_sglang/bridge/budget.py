"""The object at the seam: what SGLang's verify planner asks for its budget, answered by our scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.managers.overlap_utils import ResolvedConfidence
from sglang.srt.speculative.dspark_components.dspark_planner import DSparkVerifyPlanner, VerifyBudgetDecision

from dspark_sglang.bridge.seam import RING_LAG

if TYPE_CHECKING:
    from sglang.srt.managers.overlap_utils import FutureMap
    from torch import Tensor

    from dspark_sglang.bridge.scheduler import BridgeScheduler


class BridgeBudget:
    """Takes the place of SGLang's ``HostConfidenceBudgetPlanner``, member for member.

    Parameters
    ----------
    scheduler : BridgeScheduler

    Attributes
    ----------
    lag_steps : int
        Decode steps between a confidence and its use; for SGLang's reports.
    """

    lag_steps = RING_LAG

    def __init__(self, scheduler: BridgeScheduler) -> None:
        self.scheduler = scheduler
        self._prepared: Any = None
        self._current: Any = None
        self._last: VerifyBudgetDecision | None = None

    def install(self, planner: DSparkVerifyPlanner) -> None:
        """Take the place, and leave the short cut that a planner without step times takes."""
        planner._budget_planner = self
        planner._is_verify_all = False

    @property
    def forced_budget_frac(self) -> float | None:
        """Share of all drafts that is verified whatever is planned; SGLang's debugging override."""
        return self.scheduler.forced_share

    @forced_budget_frac.setter
    def forced_budget_frac(self, share: float | None) -> None:
        self.scheduler.forced_share = share

    def prepare(self, planner: DSparkVerifyPlanner, batch: Any, future_map: FutureMap) -> None:
        """Decide a step ahead of its launch, as SGLang's scheduler asks under overlap."""
        planner.prepare_verify_budget(batch, RelayView(self, future_map))

    def prepared(self, batch: Any) -> None:
        """Note the batch that the next question is about."""
        self._prepared = batch

    def begin(self, batch: Any) -> None:
        """Note the batch that is launched; without overlap the question comes in the middle of its step."""
        self._current = batch

    def compute_budget(
        self, *, confidence: Tensor, generation: Tensor, current_generation: Tensor, req_pool_indices_cpu: Tensor
    ) -> int:
        """Decide K.

        Parameters
        ----------
        confidence : fp32 [R, gamma]
            Under overlap unused: `RelayView` has read them, of the step that they belong to. Else this step's own,
            which are planned with two steps later.
        generation : unused
            Ours are of the step that was drafted, SGLang's of when its result was published.
        current_generation, req_pool_indices_cpu : int64 [R]
        """
        del generation
        batch, self._prepared = self._prepared, None
        own = batch is None
        slots = req_pool_indices_cpu.numpy().astype(np.int64)
        budget = self.scheduler.decide(self._current if own else batch, slots, current_generation.numpy().copy())
        if own:
            self.scheduler.receive_own(confidence.float().numpy())
        self._last = self._report(budget)
        return budget

    def _report(self, budget: int) -> VerifyBudgetDecision:
        step = self.scheduler.deciding
        seconds = step.predicted_s(budget) or None
        tokens = step.decision.expected_tokens
        rate = tokens / seconds if seconds and np.isfinite(tokens) else None
        return VerifyBudgetDecision(budget=budget, predicted_step_seconds=seconds, predicted_theta=rate)

    def take_last_decision(self) -> VerifyBudgetDecision | None:
        """Return the last decision once, for SGLang's reports."""
        last, self._last = self._last, None
        return last

    def note_non_decode_step(self) -> None:
        """Note a prefill or an idle step."""
        self._last = None
        self.scheduler.interrupt()


class RelayView:
    """SGLang's relay as its planner sees it: always with an answer, so that every rank asks for a budget.

    A rank whose copy is late would otherwise verify whole blocks while the others do not. And rows are read as the
    step that published them had them: whoever has moved into a row since is a stranger, whatever SGLang's own count
    of occupants says.

    Parameters
    ----------
    budget : BridgeBudget
    future_map : FutureMap
    """

    def __init__(self, budget: BridgeBudget, future_map: FutureMap) -> None:
        self._budget, self._future_map = budget, future_map

    def resolve_confidence_cpu(self, batch: Any) -> ResolvedConfidence | None:
        """Hand what can be read to the scheduler; None for a batch without requests."""
        if not batch.reqs:
            return None
        scheduler = self._budget.scheduler
        # Without the ring there is one buffer, which is read after the last step has written it.
        lag = 1 if self._future_map.fwd_prepare_d2h_stream is None else RING_LAG
        bridged = scheduler.unread(lag)
        if bridged is not None:
            rows = SimpleNamespace(
                spec_info=batch.spec_info,
                req_pool_indices=bridged.rows,
                req_pool_indices_cpu=torch.from_numpy(bridged.step.slots),
            )
            found = self._future_map.resolve_confidence_cpu(rows)
            if found is None:
                scheduler.lost(bridged)
            else:
                scheduler.receive(bridged, found.confidence.float().numpy())
        self._budget.prepared(batch)
        nothing = torch.empty((0, scheduler.gamma))
        return ResolvedConfidence(confidence=nothing, generation=torch.empty(0, dtype=torch.int64))
