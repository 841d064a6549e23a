"""What the planner is asked and what it answers, for one decode step.

Shape letters: R requests, G = gamma slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]
Floats64 = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Predicted seconds of the step about to run.

    Attributes
    ----------
    plain_s : float
        Without drafting: R tokens through the target.
    step_times : float64 [R * G + 1]
        Drafting all R requests and verifying R + k tokens.
    draft_row_s : float
        Seconds saved for each request that is not drafted; 0 if the draft's time does not depend on it.
    tiers : int64 [N] or None
        Ascending verify-token counts at which graphs exist.
    """

    plain_s: float
    step_times: Floats64
    draft_row_s: float = 0.0
    tiers: Ints | None = None


@dataclass(frozen=True, slots=True)
class StepView:
    """A decode step before it is launched; nothing in it is younger than two steps except who is in the batch.

    Attributes
    ----------
    slots, generations : int64 [R]
        Request slot and the number of its occupant.
    costs : StepCosts or None
        None while there is no step-time model.
    inverse_temperatures : float32 [2, G]
        1 / T per slot, row 0 for greedy requests and row 1 for sampled ones.
    sampled : bool [R] or None
        None if all are greedy.
    room : int64 [R] or None
        Drafts that can be used before the context or the answer ends, 0..G; None if all can. Requests with no room
        are not drafted.
    calibration_ok : bool
        False when live calibration has left its bound.
    empirical : float32 [G] or None
        Observed share of rounds whose drafts 0..j were all accepted, used while ``calibration_ok`` is False.
    """

    slots: Ints
    generations: Ints
    costs: StepCosts | None
    inverse_temperatures: Floats32
    sampled: Bools | None = None
    room: Ints | None = None
    calibration_ok: bool = True
    empirical: Floats32 | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """How to run a decode step.

    Attributes
    ----------
    step : int
        Its number; pass it to ``Planner.publish`` with the step's confidences.
    draft : bool
        False for a plain step: nobody drafts, every request decodes one token.
    budget : int or None
        K. None if the device decides from current confidences ("threshold", "early-stop") or by a fixed length.
    drafted : bool [R] or None
        Requests to draft; None for all. Those left out decode one token.
    expected_tokens : float
        Tokens the step is expected to emit, bonus included; NaN if it was not predicted.
    step_time_s : float
        Predicted seconds; NaN if there was no prediction.
    gain : float
        Predicted throughput of the best drafted step over a plain one, minus 1; NaN if it was not predicted.
    reason : str
        Name of the fallback that shaped the decision, or "".
    probe : bool
        Drafted only to look whether drafting has become worth it.
    """

    step: int
    draft: bool
    budget: int | None
    drafted: Bools | None = None
    expected_tokens: float = float("nan")
    step_time_s: float = float("nan")
    gain: float = float("nan")
    reason: str = ""
    probe: bool = False
