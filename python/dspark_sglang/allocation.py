"""How many drafts of each request are verified, from this step's own confidences and the budget decided before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sglang.kernels import admission
from sgl_dspark.calibration.online import FullLengthProbes
from sgl_dspark.planner.allocate import admit, threshold_lens
from sgl_dspark.planner.prefix import early_stop
from sgl_dspark.planner.survival import survival_of

if TYPE_CHECKING:
    from dspark_sglang.step import Step
    from sgl_dspark.calibration.online import OnlineCalibration
    from sgl_dspark.planner.config import PlannerConfig
    from sgl_dspark.sampling.block import DraftBlock


@dataclass(frozen=True)
class DevicePlan:
    """What the device ranks a step's drafts by, known before they are drafted.

    Attributes
    ----------
    budget : int
        Drafts that go to whoever ranks first.
    room, least : int64 [R]
        Most drafts of each request, 0 for those not drafted; and drafts verified in any case.
    most : int
        The most drafts that this comes to.
    """

    budget: int
    room: np.ndarray
    least: np.ndarray
    most: int

    @property
    def bounds(self) -> list[int]:
        """Return the most tokens that are verified of each request, anchor included."""
        return (1 + np.minimum(self.room, self.least + self.budget)).tolist()


class Allocator:
    """Turns a decision and a drafted block into lengths.

    Parameters
    ----------
    gamma : int
    calibration : OnlineCalibration
        Read anew in every step.
    """

    def __init__(self, gamma: int, calibration: OnlineCalibration) -> None:
        self.gamma, self._calibration = gamma, calibration
        self.probes = FullLengthProbes(gamma)
        self._slots = np.arange(gamma)
        self._ones = np.ones(gamma, np.float32)

    def allocate(self, step: Step, block: DraftBlock, config: PlannerConfig) -> None:
        """Set ``step.lens`` and ``step.expected``.

        Invariant: whether slot j of a request is verified depends on confidences up to slot j, which have not seen
        the draft there, on what was known before the step, and in Algorithm 1 on what ranks before it.
        """
        drafted = step.decision.drafted
        room = step.room if drafted is None else np.where(drafted, step.room, 0)
        survival = self._survival(step, block, room)
        lens = np.minimum(self._wanted(step, survival, config), room)
        if config.policy != "static":
            lens = self._probe(step, lens, room)
        step.lens = lens
        step.expected = 1.0 + np.where(self._slots < lens[:, None], survival, np.float32(0.0)).sum(axis=1)

    def on_device(self, step: Step, config: PlannerConfig) -> DevicePlan | None:
        """Say what the device is to rank by; None for policies that decide from the confidences themselves.

        Invariant: nothing here has seen the step's own drafts or confidences.
        """
        drafted, budget = step.decision.drafted, step.decision.budget
        room = step.room if drafted is None else np.where(drafted, step.room, 0)
        least = np.zeros(len(room), np.int64)
        if budget is None:
            if config.policy == "threshold" or (config.policy == "early-stop" and step.costs is not None):
                return None
            fixed = self.gamma if config.verify_drafts is None else config.verify_drafts
            least, budget = np.minimum(room, fixed), 0
        budget = min(budget, int(room.sum()))
        planned = min(budget + int(least.sum()), int(room.sum()))
        if config.policy != "static":
            chosen = self.probes.full_length_probe(step.number, len(room), planned + len(room))
            if chosen >= 0 and room[chosen] > least[chosen]:
                # What it adds is known to the device; all of it is charged.
                self.probes.charge(int(room[chosen] - least[chosen]))
                planned = min(planned + int(room[chosen] - least[chosen]), int(room.sum()))
                least[chosen] = room[chosen]
        return DevicePlan(budget, room, least, planned)

    def settle(self, step: Step) -> None:
        """Set ``step.lens`` and ``step.expected`` from what the device has ranked, once that has arrived."""
        assert step.sent is not None
        assert step.sent.ranked_cpu is not None
        step.sent.wait()
        lens, survival = (part.numpy() for part in step.sent.ranked_cpu)
        rows = slice(None) if step.drafted is None else step.drafted.numpy()
        step.lens, step.expected = np.zeros(len(step.slots), np.int64), np.ones(len(step.slots), np.float32)
        step.lens[rows] = lens
        step.expected[rows] += np.where(self._slots < lens[:, None], survival, np.float32(0.0)).sum(axis=1)

    def _wanted(self, step: Step, survival: np.ndarray, config: PlannerConfig) -> np.ndarray:
        budget = step.decision.budget
        if budget is not None:
            return admit(survival, budget)
        if config.policy == "threshold":
            previous = np.concatenate([np.ones_like(survival[:, :1]), survival[:, :-1]], axis=1)
            confidence = np.divide(survival, previous, out=np.full_like(survival, -1.0), where=previous > 0)
            return threshold_lens(confidence, config.threshold)
        if config.policy == "early-stop" and step.costs is not None:
            return early_stop(survival, step.costs.step_times)[1]
        fixed = self.gamma if config.verify_drafts is None else config.verify_drafts
        return np.full(len(step.slots), fixed, np.int64)

    def _survival(self, step: Step, block: DraftBlock, room: np.ndarray) -> np.ndarray:
        """Give float32 [R, gamma]; 0 where nothing may be verified."""
        kinds, logits = step.kinds, block.confidence_logits
        inverse, biases = self._calibration.inverse_temperatures[kinds], self._calibration.biases[kinds]
        if logits.device.type == "cpu":
            scaled = logits.float().numpy() * inverse
            scaled += biases
            found = survival_of(scaled, self._ones)
        else:
            on_device = torch.from_numpy(inverse).to(logits.device), torch.from_numpy(biases).to(logits.device)
            # Sync: the plan of ragged attention is made on the host, from each request's length.
            found = admission.survival_of(logits, *on_device).cpu().numpy()
        if room.min(initial=self.gamma) < self.gamma:
            found = np.where(self._slots < room[:, None], found, np.float32(0.0))
        return found

    def _probe(self, step: Step, lens: np.ndarray, room: np.ndarray) -> np.ndarray:
        """Now and then verify one request's whole block, so that slots beyond the budget stay observed."""
        chosen = self.probes.full_length_probe(step.number, len(lens), int(lens.sum()) + len(lens))
        if chosen < 0 or lens[chosen] >= room[chosen]:
            return lens
        self.probes.charge(int(room[chosen] - lens[chosen]))
        lens = lens.copy()
        lens[chosen] = room[chosen]
        return lens
