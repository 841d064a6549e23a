"""What steps really take: a measured step-time model plus prefill, and curves to try without a machine.

The planner of a simulated run may believe something else: another model, or :class:`FixedContext`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sgl_dspark.simulator.arrivals import at_least
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel, StepTimes


@dataclass(frozen=True)
class Machine:
    """One engine's speed.

    Attributes
    ----------
    name : str
        Shown in results.
    steps : StepTimes
        Seconds of decode steps.
    prefill_s, prefill_token_s : float
        Seconds per prefill step and per prompt token in it.
    """

    name: str
    steps: StepTimes
    prefill_s: float = 0.0
    prefill_token_s: float = 0.0

    def __post_init__(self) -> None:
        at_least("prefill_s", self.prefill_s, 0)
        at_least("prefill_token_s", self.prefill_token_s, 0)

    def prefill_time(self, tokens: int) -> float:
        """Return the seconds of a prefill step of ``tokens`` prompt tokens."""
        return self.prefill_s + self.prefill_token_s * tokens


@dataclass(frozen=True)
class FixedContext:
    """What a profile taken at one context length believes: every request reads ``typical_tok`` tokens, always.

    The paper's table has verify tokens as its only axis, so the context read while it was profiled is in every entry.
    Interface of ``StepTimes``.

    Attributes
    ----------
    model : StepTimes
        The machine that was profiled.
    typical_tok : float
        Context tokens per request while profiling.
    """

    model: StepTimes
    typical_tok: float

    @property
    def tiers(self) -> NDArray[np.int64] | None:
        """Verify-token sizes at which graphs exist."""
        return self.model.tiers

    def step_times(
        self, requests: int, gamma: int, context_tokens: int, prefill_tokens: int = 0, drafted: int | None = None
    ) -> NDArray[np.float64]:
        """Return float64 [R*gamma + 1]; ``context_tokens`` is ignored."""
        return self.model.step_times(requests, gamma, self._typical(requests), prefill_tokens, drafted)

    def plain_time(self, requests: int, context_tokens: int, prefill_tokens: int = 0) -> float:
        """Return seconds; ``context_tokens`` is ignored."""
        return self.model.plain_time(requests, self._typical(requests), prefill_tokens)

    def draft_row_s(self, rows: int) -> float:
        """Return the seconds of one drafted row."""
        return self.model.draft_row_s(rows)

    def _typical(self, requests: int) -> int:
        return round(self.typical_tok * requests)


def h200_like() -> Machine:
    """Return an assumed machine: an 8-billion-parameter bf16 target on one H200, with graph tiers.

    Not measured. 16.4 GB of weights at 4.4 TB/s and 16.4 GFLOP a token at 650 TFLOP/s, half of the compute rounded up
    to waves of 128 rows, make the roofline; 0.8 ms a step is the host. Tiers: 1, 2, 4, every 8 to 64, every 16 to 256,
    every 32 to 512, then every 64. The draft takes 0.9 ms and 2 us a request; a context token is 147 kB of
    KV at 4 TB/s.
    """
    tiers = np.array([1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32), *range(512, 4097, 64)])
    weights_s, token_s = 16.4e9 / 4.4e12, 16.4e9 / 6.5e14
    compute = token_s * (0.5 * tiers + 64 * np.ceil(tiers / 128))
    # A smooth maximum: memory and compute overlap, imperfectly near the ridge.
    verify = Curve(tiers, (weights_s**4 + compute**4) ** 0.25, stairs=True)
    draft = Curve([1, 512], [0.9e-3, 0.9e-3 + 512 * 2e-6])
    model = StepTimeModel(verify, draft, context_token_s=147e3 / 4.0e12, host_s=0.8e-3)
    return Machine("h200", model, 0.8e-3 + weights_s / 2, token_s)


def doubling_like() -> Machine:
    """Return the machine of :func:`h200_like` with graphs at powers of two only: the coarsest common ladder."""
    fine = h200_like()
    tiers = 2 ** np.arange(13)
    assert isinstance(fine.steps, StepTimeModel)
    return Machine("doubling", replace(fine.steps, verify=fine.steps.verify.staircase(tiers)), fine.prefill_s, 0.0)


def figure8_like() -> Machine:
    """Return the affine curve that the paper's Fig. 8 implies for the Flash model's one-draft baseline.

    With an assumed 1.85 tokens a step of 2R verified ones, its throughput at concurrency 10 to 200 gives steps of 16.0
    to 26.8 ms: 15.4 ms and 28.5 us per verify token, of which drafting is assumed to be 0.5 ms.
    """
    sizes = np.array([1, 4096])
    model = StepTimeModel(Curve(sizes, 14.9e-3 + 28.5e-6 * sizes), Curve(sizes, np.full(2, 0.5e-3)))
    return Machine("figure8", model, 5e-3, 20e-6)


def cpu_like() -> Machine:
    """Return the curve of one CPU core that serves SmolLM2-135M, read off its results in ``docs/results``.

    Plain steps of 28, 33 and 55 ms at 1, 4 and 16 tokens; 80 tokens take 2.2 times what 16 do. The draft's 4 ms and
    0.4 ms a row, and the context's 0.7 us per query and token, are assumed.
    """
    verify = Curve([1, 4, 16, 80], [28e-3, 33e-3, 55e-3, 121e-3])
    draft = Curve([1, 64], [4.4e-3, 4e-3 + 64 * 0.4e-3])
    return Machine("cpu", StepTimeModel(verify, draft, context_query_s=0.7e-6), 10e-3, 1.2e-3)


MACHINES = {"h200": h200_like, "doubling": doubling_like, "figure8": figure8_like, "cpu": cpu_like}
