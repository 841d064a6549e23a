"""One decode step on its way from decision to verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from dspark_sglang.allocation import DevicePlan
    from dspark_sglang.relay import Sent
    from sgl_dspark.planner.step import Decision, StepCosts


@dataclass
class Step:
    """One decode step on its way: what was decided, and what is needed to learn from it.

    Attributes
    ----------
    requests : list
        SGLang's requests, in batch order.
    slots, generations : int64 [R]
        Rows of the request pool and their occupants' numbers.
    kinds : int64 [R]
        Which calibration each request has: greedy, sampled, adjusted.
    room : int64 [R]
        Drafts that fit before the context ends and that the answer can still use, 0..gamma.
    drafted : int64 tensor [n] or None
        Requests that draft; None for all.
    lens : int64 [R]
        Drafts verified, known once ranked; where the device ranks, once its verdict is there.
    on_device : DevicePlan or None
        What the device ranks by.
    ranked : (int64 [n], fp32 [n, gamma]) tensors or None
        Drafts verified of the drafted requests, and their survival, as the device ranked them.
    took : (float, float) or None
        Seconds predicted and measured, kept until ``lens`` is known.
    policy : str
        In force when it was decided.
    expected : float32 [R] or None
        Tokens that each request is expected to emit, by this step's own confidences.
    emitted, was_timed : int or None, bool
        For the metrics: what it emitted, and whether its time has been counted; they come in either order.
    marks_s, events : list
        Between its parts: the host's clock, and on an accelerator its events.
    """

    number: int
    requests: list[Any]
    slots: np.ndarray
    generations: np.ndarray
    kinds: np.ndarray
    room: np.ndarray
    context_tokens: int
    decision: Decision
    costs: StepCosts | None
    started_s: float
    policy: str = "adaptive"
    drafted: Tensor | None = None
    lens: np.ndarray | None = None
    on_device: DevicePlan | None = None
    ranked: tuple[Tensor, Tensor] | None = None
    took: tuple[float, float] | None = None
    expected: np.ndarray | None = None
    sent: Sent | None = None
    emitted: int | None = None
    was_timed: bool = False
    marks_s: list[float] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    @property
    def drafts(self) -> bool:
        """Whether any request drafts."""
        return self.decision.draft

    @property
    def drafted_count(self) -> int:
        """How many requests draft."""
        if not self.drafts:
            return 0
        return len(self.slots) if self.drafted is None else len(self.drafted)

    @property
    def verified(self) -> int:
        """Drafts that the step verifies: exactly, or the most where the device ranks."""
        if self.lens is not None:
            return int(self.lens.sum())
        return 0 if self.on_device is None else self.on_device.most

    def predicted_s(self, budget: int) -> float:
        """Return the seconds that were expected of this step with ``budget`` drafts verified; 0 if nothing was."""
        costs = self.costs
        if costs is None:
            return 0.0
        if not self.drafts:
            return costs.plain_s
        return float(costs.step_times[budget]) - costs.draft_row_s * (len(self.slots) - self.drafted_count)
