"""What a decode step took, and whether that can be told from the steps around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dspark_sglang.bridge.rounds import BridgedStep

# Steps whose sizes differ by no more are neighbours: on backends that keep lengths on the device, the host runs up to
# a step ahead, and what it measures may be the step before.
_NEIGHBOURS = 0.1


class Timed(NamedTuple):
    """A step whose time is known.

    Attributes
    ----------
    bridged : BridgedStep
    seconds : float
        Until the start of the next.
    steady : bool
        Whether the step before was of nearly the same size, so that the time is certainly of this size.
    repeated : bool
        Whether it was of exactly the same size.
    """

    bridged: BridgedStep
    seconds: float
    steady: bool
    repeated: bool


class StepClock:
    """Times decode steps from start to start."""

    def __init__(self) -> None:
        self._running: BridgedStep | None = None
        self._before = (0, 0)

    def start(self, bridged: BridgedStep) -> None:
        """Note a step that was launched."""
        self._running = bridged

    def interrupt(self) -> None:
        """Note that something else ran: the time until the next step is not the last one's alone."""
        self._running = None

    def close(self, now: float) -> Timed | None:
        """End the running step, since the next begins; None if there is none."""
        running, self._running = self._running, None
        before, self._before = self._before, (0, 0)
        if running is None:
            return None
        requests, budget = len(running.step.slots), running.budget
        self._before = requests, budget
        running.seconds = now - running.step.started_s
        close = before[0] == requests and abs(before[1] - budget) <= _NEIGHBOURS * (requests + budget)
        return Timed(running, running.seconds, close, before == (requests, budget))
