"""What a decode step tells the host later: confidences and drafts, copied without waiting.

Planning reads confidences that are at least two steps old (Sec. 5.2), so on an accelerator the copy has a whole step
to arrive. On a CPU nothing is copied, but the rows take the same way: the lag is counted in steps, never in time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass
class Sent:
    """One step's copies.

    Attributes
    ----------
    step : int
        Number of the decode step.
    slots, generations : int64 [n]
        Rows of the request pool that were drafted, and which of their occupants.
    kinds : int64 [n]
        Which calibration each request has.
    logits_cpu : fp32 [n, gamma]
        Uncalibrated confidence logits; readable once `ready`.
    tokens_cpu : int64 [n, gamma]
        The drafts.
    ranked_cpu : (int64 [n], fp32 [n, gamma]) or None
        Drafts verified and their survival, where the device ranked them.
    """

    step: int
    slots: np.ndarray
    generations: np.ndarray
    kinds: np.ndarray
    logits_cpu: Tensor
    tokens_cpu: Tensor
    event: Any = None
    ranked_cpu: tuple[Tensor, Tensor] | None = None

    def wait(self) -> None:
        """Wait for the copies. Sync: for whoever holds the step's verdict, which was copied after them."""
        if self.event is not None:
            self.event.synchronize()

    def ready(self) -> bool:
        """Whether the copies have arrived; never waits."""
        return self.event is None or bool(self.event.query())


class ConfidenceRelay:
    """Copies in flight, oldest first."""

    def __init__(self) -> None:
        self._pending: deque[Sent] = deque()

    def send(
        self,
        step: int,
        slots: np.ndarray,
        generations: np.ndarray,
        kinds: np.ndarray,
        logits: Tensor,
        tokens: Tensor,
        ranked: tuple[Tensor, Tensor] | None = None,
    ) -> Sent:
        """Start the copies of one step and return their handle; arguments as the attributes of `Sent`."""
        event = None
        if tokens.device.type != "cpu":
            logits, tokens = _to_pinned(logits), _to_pinned(tokens)
            ranked = None if ranked is None else (_to_pinned(ranked[0]), _to_pinned(ranked[1]))
            event = torch.cuda.Event()
            event.record()
        sent = Sent(step, slots, generations, kinds, logits, tokens, event, ranked)
        self._pending.append(sent)
        return sent

    def receive(self) -> list[Sent]:
        """Take what has arrived, in the order of the steps."""
        arrived = []
        while self._pending and self._pending[0].ready():
            arrived.append(self._pending.popleft())
        return arrived

    def waiting(self) -> int:
        """Count the copies still in flight."""
        return len(self._pending)


def _to_pinned(tensor: Tensor) -> Tensor:
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
