"""Where the time of a decode step goes, without waiting for the device.

On a CPU work is done when a call returns, so the host's clock tells. On an accelerator events are recorded between the
parts and read one or more steps later, when they have passed.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from dspark_sglang.step import Step

# Marks of a step: planned, drafted, ranked, ended. `Step.started_s` comes before them.
MARKS = 4
PLAN, DRAFT, RANK, VERIFY, REST = range(5)


class PhaseClock:
    """Marks the parts of steps.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._events = device is not None and device.type == "cuda"
        self._waiting: deque[list[Any]] = deque()

    def mark(self, step: Step) -> None:
        """Note that the next part of a step is through."""
        step.marks_s.append(time.perf_counter())
        if self._events:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            step.events.append(event)

    def add(self, step: Step, seconds: float, phases: np.ndarray) -> None:
        """Add a step's time by phase to ``phases``, float64 [5]; ``seconds`` is all of it."""
        if len(step.marks_s) != MARKS:
            return
        planned, drafted, ranked, ended = step.marks_s
        phases[PLAN] += planned - step.started_s
        phases[RANK] += ranked - drafted
        phases[REST] += max(seconds - (ended - step.started_s), 0.0)
        if not self._events:
            phases[DRAFT] += drafted - planned
            phases[VERIFY] += ended - ranked
            return
        self._waiting.append(step.events)
        while self._waiting and self._waiting[0][-1].query():
            first, second, third, last = self._waiting.popleft()
            phases[DRAFT] += first.elapsed_time(second) / 1000
            phases[VERIFY] += third.elapsed_time(last) / 1000
