"""Runs the arms in alternation and keeps what was measured, also when it is broken off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from dspark_sglang.bench.client import RequestSettings, measure_level
from dspark_sglang.bench.metrics import RequestResult, run_metrics
from dspark_sglang.bench.policies import difference, read_counts, switch
from sgl_dspark.comparison import Policy, rotated, schedule
from sgl_dspark.data.prompt_set import Prompt, take
from sgl_dspark.server_process import PLAIN, Arm

# Answers of up to this many tokens, one per worker, before a policy is measured: some tens of steps at its level.
SETTLE_TOKENS = 96


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
        Least number of requests of a level.
    waves : int
        Requests per client: a level c sends at least ``waves * c``. The last wave runs with ever fewer clients, so that
        few waves measure a lower concurrency than they say.
    settings : RequestSettings
    policies : sequence of Policy
        Measured in turn on every server but the one named ``plain``; none: servers are measured as they start.
    """

    prompts: Sequence[Prompt]
    concurrency: Sequence[int] = (1, 4, 16)
    rounds: int = 2
    requests: int = 16
    settings: RequestSettings = field(default_factory=RequestSettings)
    policies: Sequence[Policy] = ()
    waves: int = 2

    def count(self, concurrency: int) -> int:
        """Return the requests of a level: enough to keep it filled for about half of the time or more."""
        return max(self.requests, self.waves * concurrency)


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
        Server, or the policy that it followed.
    concurrency : int
    started_s : float
        Unix time.
    results : list of RequestResult
    counts : dict of str to float, or None
        What the server counted meanwhile (``policies.read_counts``), where policies are compared.
    """

    round: int
    turn: int
    arm: str
    concurrency: int
    started_s: float
    results: list[RequestResult]
    counts: dict[str, float] | None = None

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
                for policy in _policies(arm, plan, round_):
                    run = _measure(arm, url, plan, Place(round_, turn, level), policy, progress)
                    runs.append(run)
                    log(f"round {round_ + 1} of {plan.rounds}, {run.arm}, concurrency {level}: {_line(run)}")


class Place(NamedTuple):
    """Where a run belongs: see `Run`."""

    round: int
    turn: int
    concurrency: int


def _policies(arm: Arm, plan: Plan, round_: int) -> Sequence[Policy | None]:
    return rotated(plan.policies, round_) if plan.policies and arm.name != PLAIN else [None]


def _measure(
    arm: Arm, url: str, plan: Plan, place: Place, policy: Policy | None, progress: Callable[[int, int], None] | None
) -> Run:
    level = place.concurrency
    prompts = take(plan.prompts, plan.count(level))
    told = partial(progress, len(prompts)) if progress else None
    before = None
    if policy is not None:
        switch(url, policy)
        _settle(url, plan, level)
        before = read_counts(url)
    started_s = time.time()
    # Policies share a server, and with it a prefix cache that would favour those that come later.
    flush, warm_up = arm.ours or policy is not None, policy is None
    answered = measure_level(url, prompts, level, plan.settings, flush=flush, warm_up=warm_up, progress=told)
    results = asyncio.run(answered)
    counts = None if before is None else difference(before, read_counts(url))
    return Run(place.round, place.turn, policy.name if policy else arm.name, level, started_s, results, counts)


def _settle(url: str, plan: Plan, level: int) -> None:
    """Let what the server learns online meet the policy and the level; nothing of it is kept."""
    settings = replace(plan.settings, max_tokens=min(plan.settings.max_tokens, SETTLE_TOKENS))
    prompts = take(plan.prompts[::-1], level)
    asyncio.run(measure_level(url, prompts, level, settings, flush=False, warm_up=False))


def _line(run: Run) -> str:
    metrics = run.metrics
    accept = metrics["mean_accept_len"]
    tail = "" if accept is None else f", accept length {accept:.2f}"
    return f"{metrics['tok_s']:.1f} tok/s over {len(run.results)} requests{tail}"
