"""Decode steps of SGLang's worker on their way: launched, judged one step later, confidences known by then or after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dspark_sglang.adjust.traits import SEEDED, RequestTraits
from sgl_dspark.calibration.online import ADJUSTED
from sgl_dspark.calibration.records import GREEDY, SAMPLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sglang.step import Step


class Verdict(NamedTuple):
    """What came of a step.

    Attributes
    ----------
    correct : int64 [R]
        Accepted drafts, as SGLang counts them.
    accepted, verified : int64 [R]
        Cut behind the token that ended the answer.
    alive : bool [R]
        Requests that were still running.
    """

    correct: np.ndarray
    accepted: np.ndarray
    verified: np.ndarray
    alive: np.ndarray


@dataclass
class BridgedStep:
    """One decode step.

    Attributes
    ----------
    step : Step
    budget : int
        K that all ranks agreed on; fewer are verified where confidences are next to nothing.
    rows : int tensor [R]
        Rows of the request pool, on the device.
    in_force : tuple of float32 [gamma]
        Calibration that its confidences were published under.
    result : GenerationBatchResult or None
        Once launched.
    logits : float32 [R, gamma] or None
        Of the confidence head, uncalibrated, once they have come.
    verdict : Verdict or None
        Once judged.
    seconds : float or None
        Until the start of the next, if that is known.
    awaited : bool
        Whether its confidences may still come.
    told : bool
        Whether its time has been handed on.
    """

    step: Step
    budget: int
    rows: Any
    in_force: tuple[np.ndarray, np.ndarray]
    result: Any = None
    logits: np.ndarray | None = None
    verdict: Verdict | None = None
    seconds: float | None = None
    awaited: bool = True
    told: bool = False

    def judge(
        self, num_correct_drafts: Sequence[int], gamma: int, end_tokens: np.ndarray, alive: np.ndarray
    ) -> Verdict:
        """Take the verdict and return it; the result's tensors are on the host by now."""
        count, result = len(num_correct_drafts), self.result
        correct = np.array(num_correct_drafts, np.int64)
        lens = np.full(count, gamma, np.int64)
        if result.cap_lens is not None:
            lens = result.cap_lens[:count].numpy().astype(np.int64) - 1
        emitted = result.next_token_ids.view(count, -1)[:, :gamma].numpy()
        slots = np.arange(emitted.shape[1])
        ends = (emitted[:, :, None] == end_tokens).any(axis=2) & (slots < correct[:, None])
        # Nothing behind an accepted end of the answer was meant to be right.
        first_end = np.where(ends.any(axis=1), ends.argmax(axis=1), gamma) + 1
        self.step.lens = np.maximum(lens, correct)
        accepted, verified = np.minimum(correct, first_end), np.minimum(self.step.lens, first_end)
        self.verdict, self.result = Verdict(correct, accepted, verified, alive), None
        return self.verdict


class RequestKinds:
    """Tells which calibration each request has; the same kinds as `RowSampling.kinds`, without asking the device.

    Parameters
    ----------
    num_slots : int
        Rows of the request pool.
    """

    def __init__(self, num_slots: int) -> None:
        self._traits = RequestTraits(num_slots)

    def of(self, requests: Sequence[Any], slots: np.ndarray, generations: np.ndarray) -> np.ndarray:
        """Return int64 [R]."""
        # SGLang writes a greedy request as one with top-k 1.
        greedy = np.fromiter((r.sampling_params.top_k == 1 for r in requests), bool, len(requests))
        kinds = np.where(greedy, GREEDY, SAMPLED)
        flags = self._traits.look(requests, slots, generations)
        kinds[(flags & ~np.uint8(SEEDED)) != 0] = ADJUSTED
        return kinds


def context_tokens(batch: Any) -> int:
    """Return the sum of a batch's lengths, nearly: some backends keep the lengths on the device alone."""
    if batch.seq_lens_cpu is not None:
        return int(batch.seq_lens_cpu.sum())
    return sum(len(request.origin_input_ids) + len(request.output_ids) for request in batch.reqs)
