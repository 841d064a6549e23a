"""Runs the arms in alternation and keeps what was measured, also when it is broken off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dspark_sglang.bench.client import RequestSettings, measure_level
from dspark_sglang.bench.metrics import RequestResult, run_metrics, schedule
from dspark_sglang.bench.prompts import Prompt, take
from dspark_sglang.bench.server import Arm


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes
    ----------
    prompts : sequence of Prompt
        In the order in which they are sent; every level and arm sends the same beginning of it.
    concurrency : sequence of int
        Levels, in order.
    rounds : int
        Turns of every arm.
    requests : int
        Least number of requests of a level; a level c sends at least 2 c.
    settings : RequestSettings
    """

    prompts: Sequence[Prompt]
    concurrency: Sequence[int] = (1, 4, 16)
    rounds: int = 2
    requests: int = 16
    settings: RequestSettings = field(default_factory=RequestSettings)

    def count(self, concurrency: int) -> int:
        """Return the requests of a level: enough to keep it filled for about half of the time or more."""
        return max(self.requests, 2 * concurrency)


@dataclass(frozen=True)
class Run:
    """One arm at one level in one round.

    Attributes
    ----------
    round : int
        From 0.
    turn : int
        Place of this server start in the schedule, from 0.
    arm : str
    concurrency : int
    started_s : float
        Unix time.
    results : list of RequestResult
    """

    round: int
    turn: int
    arm: str
    concurrency: int
    started_s: float
    results: list[RequestResult]

    @property
    def metrics(self) -> dict[str, float | None]:
        """See ``metrics.py``."""
        return run_metrics(self.results)


def run_session(
    arms: Sequence[Arm],
    plan: Plan,
    runs: list[Run],
    *,
    log: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Measure every arm at every level in every round, forwards and backwards in turn.

    Parameters
    ----------
    arms : sequence of Arm
        The first is the baseline.
    plan : Plan
    runs : list of Run
        Each run is appended as soon as it is complete, so that what was measured survives an exception.
    log : callable
        Told in one line what starts and what was measured.
    progress : callable, optional
        Told (answers wanted, answers so far) within a run.

    Raises
    ------
    BenchError
        If a server or a request fails.
    """
    for turn, (round_, index) in enumerate(schedule(len(arms), plan.rounds)):
        arm = arms[index]
        where = f"round {round_ + 1} of {plan.rounds}, {arm.name}"
        log(f"{where}: {'starting the server' if arm.ours else 'server at a URL'}")
        with arm.open() as url:
            for level in plan.concurrency:
                prompts = take(plan.prompts, plan.count(level))
                started_s = time.time()
                told = partial(progress, len(prompts)) if progress else None
                results = asyncio.run(measure_level(url, prompts, level, plan.settings, flush=arm.ours, progress=told))
                run = Run(round_, turn, arm.name, level, started_s, results)
                runs.append(run)
                log(f"{where}, concurrency {level}: {_line(run)}")


def _line(run: Run) -> str:
    metrics = run.metrics
    accept = metrics["mean_accept_len"]
    tail = "" if accept is None else f", accept length {accept:.2f}"
    return f"{metrics['tok_s']:.1f} tok/s over {len(run.results)} requests{tail}"
