"""A synthetic server: step times that the start-up probes cannot see in full, noise, and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sgl_dspark.sps.fit import Probe, fit
from sgl_dspark.sps.model import StepTimeModel
from sgl_dspark.sps.online import OnlineStepTime

GAMMA = 7
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 33, 48, 64, 96, 128, 129, 192, 256, 384, 512)
READ_S, COMPUTED_S = 2e-7, 4e-7


@dataclass(frozen=True)
class Machine:
    """True seconds of a step; the host's share, ``misfit`` and ``drafting`` are what probes do not show."""

    slow: float = 1.0
    drafting: float = 1.2
    host_s: float = 1.5e-3
    host_request_s: float = 1.2e-4
    misfit: float = 0.0
    prefill_s: float = 2e-4

    def verify(self, tokens: int) -> float:
        return 3e-3 + 2.5e-4 * tokens + (1e-3 if tokens > 32 else 0.0) + (2e-3 if tokens > 128 else 0.0)

    def draft(self, rows: int) -> float:
        return 8e-4 + 5e-5 * rows

    def accept(self, requests: int, tokens: int) -> float:
        return 2e-4 + 2e-5 * requests + 4e-6 * tokens

    def step(self, requests: int, budget: int, drafted: int, context: int, prefill: int = 0) -> float:
        tokens = requests + budget
        seconds = self.verify(tokens) * (1.15 + self.misfit * np.sin(1.3 * np.log2(tokens)))
        seconds += context * (READ_S + COMPUTED_S * tokens / requests)
        seconds += self.host_s + self.host_request_s * requests + self.prefill_s * prefill
        if drafted:
            seconds += self.drafting * self.draft(drafted) + self.accept(requests, tokens) + 8e-4 + 3e-5 * drafted
        return float(seconds * self.slow)

    def changed(self, **terms: float) -> Machine:
        return replace(self, **terms)


def probed(machine: Machine, rng: np.random.Generator, tiers: Sequence[int] | None = None) -> StepTimeModel:
    """Return the model that noisy start-up probes of ``machine`` give."""
    probes: list[Probe] = []
    for _ in range(3):
        for tokens in SIZES:
            for context in (0, 4096):
                requests = max(1, tokens // 4)
                seconds = machine.verify(tokens) + context * (READ_S + COMPUTED_S * tokens / requests)
                probes.append(Probe("verify", requests, tokens, context, seconds * noise(rng, 0.03)))
        for rows in (1, 2, 4, 8, 16, 32, 64):
            probes.append(Probe("draft", rows, 0, 0, machine.draft(rows) * noise(rng, 0.03)))
            probes.append(Probe("accept", rows, 4 * rows, 0, machine.accept(rows, 4 * rows) * noise(rng, 0.03)))
    return fit(probes, tiers)


def noise(rng: np.random.Generator, spread: float) -> float:
    return float(np.exp(rng.normal(0.0, spread)))


@dataclass(frozen=True)
class Errors:
    """Relative errors before each step was learnt from, against the truth without noise.

    ``step`` of the step itself; ``ratio`` of (drafted with K = 3R) / (plain) at the same R, which decisions rest on.
    """

    step: np.ndarray
    ratio: np.ndarray


def serve(
    machine: Machine,
    online: OnlineStepTime,
    rng: np.random.Generator,
    steps: int,
    *,
    drafted_share: float = 0.8,
    spread: float = 0.05,
    outliers: float = 0.02,
    requests: Sequence[int] = (1, 2, 4, 8, 16, 24, 32, 48, 64),
) -> Errors:
    """Serve ``steps`` decode steps, the load changing every 20, and let ``online`` observe them."""
    step_errors, ratio_errors = [], []
    running = requests[0]
    for step in range(steps):
        if step % 20 == 0:
            running = int(rng.choice(requests))
        drafted = running if rng.random() < drafted_share else 0
        budget = int(np.clip(rng.normal(3.0, 1.0), 0, GAMMA) * running) if drafted else 0
        context = running * int(rng.integers(200, 800))
        truth = machine.step(running, budget, drafted, context)
        step_errors.append(abs(online.predict(running, budget, drafted, context) / truth - 1.0))
        ratio_errors.append(abs(decision_ratio(online, running, context) / true_ratio(machine, running, context) - 1.0))
        seconds = truth * noise(rng, spread) * (10.0 if rng.random() < outliers else 1.0)
        online.observe(running, budget, drafted, context, 0, seconds)
    return Errors(np.array(step_errors), np.array(ratio_errors))


def decision_ratio(online: OnlineStepTime, requests: int, context: int) -> float:
    return float(online.step_times(requests, GAMMA, context)[3 * requests]) / online.plain_time(requests, context)


def true_ratio(machine: Machine, requests: int, context: int) -> float:
    return machine.step(requests, 3 * requests, requests, context) / machine.step(requests, 0, 0, context)
