"""The questions that the paper leaves open, as simulations: lag, context, staircase, load and confidence.

Each study returns its cells: one condition and the figures of every arm under it, seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sgl_dspark.planner.policy import PlannerConfig
from sgl_dspark.simulator.acceptance import SyntheticConfig
from sgl_dspark.simulator.arms import NO_SPEC, Arm, standard_arms, static_arm
from sgl_dspark.simulator.arrivals import Lengths, Workload, bursty, closed_loop, draining
from sgl_dspark.simulator.engine import EngineConfig
from sgl_dspark.simulator.machines import MACHINES, FixedContext, Machine
from sgl_dspark.simulator.results import Figures
from sgl_dspark.simulator.scenario import Load, Scenario, compare, synthetic
from sgl_dspark.simulator.variants import HullStop, LiteralLag, convex_hull
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel

LAGS = (0, 1, 2, 4)
EVEN_MIX = SyntheticConfig()
CHAT_MIX = SyntheticConfig(mix=(0.15, 0.35, 0.5))
CHAT = Lengths(512, 256)
SMALL = Lengths(128, 128, max_output_tok=512)
# Requests a second that one replica of a fleet gets, and how uneven they come (see `fleet_study`).
FLEET_RATES = (10.0, 20.0, 30.0, 40.0, 50.0)
FLEET_CVS = (4.0, 1.0, 0.25)


@dataclass(frozen=True)
class Cell:
    """One condition of a study.

    Attributes
    ----------
    machine, load : str
        Names, as shown in results.
    concurrency : int or None
        Clients of a closed loop.
    arms : dict
        Arm name to one :class:`Figures` per seed.
    """

    machine: str
    load: str
    concurrency: int | None
    arms: dict[str, list[Figures]]


Study = Callable[[Sequence[int], bool], Iterator[Cell]]


def lag_study(seeds: Sequence[int], quick: bool = False) -> Iterator[Cell]:
    """Throughput lost to confidences that are 0, 1, 2 or 4 steps old, under steady, bursty and draining load."""
    arms = [Arm(f"lag {lag}, unsmoothed", PlannerConfig(lag=lag, smoothing_rows=0.0)) for lag in LAGS]
    arms += [Arm(f"lag {lag}, K as it was", variant=partial(LiteralLag, lag)) for lag in LAGS if lag]
    arms += [Arm(f"lag {lag}", PlannerConfig(lag=lag)) for lag in LAGS]
    arms += [Arm("early-stop", PlannerConfig(policy="early-stop"))]
    for name, lengths, clients, rate_rps, most in (
        ("h200", CHAT, (1, 8, 64), 30.0, 128),
        ("cpu", SMALL, (1, 4, 16), 1.0, 16),
    ):
        loads: list[tuple[str, int | None, Load]] = [
            (f"steady {count}", count, _closed(count, lengths, quick)) for count in clients
        ]
        loads.append(("bursty, CV 10", None, _bursty(rate_rps, lengths, quick)))
        loads.append(("draining", None, _draining(most, lengths)))
        for load, count, make in loads:
            scenario = _scenario(load, make, EVEN_MIX, 7, MACHINES[name](), most)
            yield Cell(name, load, count, compare(scenario, arms, seeds))


def context_study(seeds: Sequence[int], quick: bool = False) -> Iterator[Cell]:
    """Throughput gained from a step-time model that knows the context, where contexts vary."""
    for name, clients, short, long, output in (("h200", 32, 256, 12288, 256), ("cpu", 8, 64, 1536, 128)):
        machine = MACHINES[name]()
        arms = [
            Arm("tokens only, profiled short", PlannerConfig(), FixedContext(machine.steps, short)),
            Arm("tokens only, profiled long", PlannerConfig(), FixedContext(machine.steps, long)),
            Arm("context-aware", PlannerConfig()),
            *(static_arm(drafts) for drafts in (1, 3, 5, 7)),
        ]
        for load, share in (("short", 0.0), ("half long", 0.5), ("long", 1.0), ("alternating", -1.0)):
            make = _two_lengths(clients, short, long, output, share, quick)
            yield Cell(name, load, clients, compare(_scenario(load, make, EVEN_MIX, 7, machine, clients), arms, seeds))


def staircase_study(seeds: Sequence[int], quick: bool = False) -> Iterator[Cell]:
    """Throughput lost by stopping early, or by not knowing the tiers, on a staircase."""
    for name in ("figure8", "h200", "doubling"):
        machine = MACHINES[name]()
        model = machine.steps
        assert isinstance(model, StepTimeModel)
        line = replace(model, verify=Curve(model.verify.sizes, model.verify.seconds))
        arms = [
            Arm("global, lag 2", PlannerConfig()),
            Arm("global, lag 0", PlannerConfig(lag=0, smoothing_rows=0.0)),
            Arm("early stop", PlannerConfig(policy="early-stop")),
            Arm("global on a line", PlannerConfig(), line),
            Arm("early stop on a line", PlannerConfig(policy="early-stop"), line),
            Arm("early stop on the hull", PlannerConfig(policy="early-stop"), convex_hull(model)),
            Arm("early stop on the hull, filled", variant=HullStop),
        ]
        for clients in (4, 16, 64):
            make = _closed(clients, CHAT, quick)
            scenario = _scenario(f"steady {clients}", make, EVEN_MIX, 7, machine, clients)
            yield Cell(name, scenario.name, clients, compare(scenario, arms, seeds))


def load_study(seeds: Sequence[int], quick: bool = False) -> Iterator[Cell]:
    """Verify length and throughput of every policy as concurrency grows (the paper's Fig. 8)."""
    for name, gamma, mix, lengths, levels in (
        ("figure8", 5, CHAT_MIX, CHAT, (10, 20, 50, 75, 100, 150, 200)),
        ("h200", 7, EVEN_MIX, CHAT, (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("cpu", 7, EVEN_MIX, SMALL, (1, 2, 4, 8, 16, 32)),
    ):
        for clients in levels[::3] if quick else levels:
            make = _closed(clients, lengths, quick)
            scenario = _scenario(f"steady {clients}", make, mix, gamma, MACHINES[name](), clients)
            yield Cell(name, scenario.name, clients, compare(scenario, standard_arms(gamma), seeds))


def confidence_study(seeds: Sequence[int], quick: bool = False) -> Iterator[Cell]:
    """Throughput lost to confidence that is not calibrated, or to a fixed threshold instead of a budget."""
    arms = [Arm("calibrated", PlannerConfig())]
    arms += [Arm(f"logits x {scale:g}", PlannerConfig(), confidence_scale=scale) for scale in (0.5, 0.7, 1.5, 2.0)]
    thresholds = (PlannerConfig(policy="threshold", threshold=least) for least in (0.3, 0.5, 0.7, 0.9))
    arms += [Arm(f"threshold {config.threshold:g}", config) for config in thresholds]
    for name, lengths, levels in (("h200", CHAT, (8, 64, 256)), ("cpu", SMALL, (1, 4, 16))):
        for clients in levels:
            make = _closed(clients, lengths, quick)
            scenario = _scenario(f"steady {clients}", make, EVEN_MIX, 7, MACHINES[name](), clients)
            yield Cell(name, scenario.name, clients, compare(scenario, arms, seeds))


def fleet_study(seeds: Sequence[int], quick: bool = False) -> Iterator[Cell]:
    """Speed of the slowest users and waiting as a fleet's traffic grows, seen from one of its replicas.

    A router that hands requests out in turn gives each of N replicas every N-th of them. Gaps between every N-th
    arrival of a Gamma process with a coefficient of variation CV are Gamma with CV / sqrt(N). So one replica under
    ``rate / N`` and that CV *is* a replica of the fleet: CV 1 is one alone under Poisson traffic, and one of 16 under
    traffic that comes in bursts of CV 4.
    """
    arms = [Arm(NO_SPEC, None), static_arm(3), static_arm(7), Arm("adaptive lag 2", PlannerConfig())]
    machine = MACHINES["h200"]()
    for cv in FLEET_CVS[::2] if quick else FLEET_CVS:
        for rate in FLEET_RATES[::4] if quick else FLEET_RATES:
            make = _arriving(rate, cv, CHAT, quick)
            scenario = _scenario(f"{rate:g} rps, CV {cv:g}", make, EVEN_MIX, 7, machine, 256)
            yield Cell("h200", scenario.name, None, compare(scenario, arms, seeds))


STUDIES: dict[str, Study] = {
    "lag": lag_study,
    "context": context_study,
    "staircase": staircase_study,
    "load": load_study,
    "confidence": confidence_study,
    "fleet": fleet_study,
}


def _scenario(name: str, load: Load, mix: SyntheticConfig, gamma: int, machine: Machine, slots: int) -> Scenario:
    return Scenario(name, load, synthetic(mix, gamma), machine, EngineConfig(slots))


def _closed(clients: int, lengths: Lengths, quick: bool) -> Load:
    count = clients + (min(max(clients, 8), 64) if quick else min(max(6 * clients, 40), 512))
    return lambda rng: closed_loop(count, clients, lengths, rng)


def _bursty(rate_rps: float, lengths: Lengths, quick: bool) -> Load:
    return lambda rng: bursty(60 if quick else 400, rate_rps, 10.0, lengths, rng)


def _arriving(rate_rps: float, cv: float, lengths: Lengths, quick: bool) -> Load:
    return lambda rng: bursty(20 if quick else 400, rate_rps, cv, lengths, rng)


def _draining(count: int, lengths: Lengths) -> Load:
    return lambda rng: draining(count, lengths, rng)


def _two_lengths(clients: int, short: int, long: int, output: int, share: float, quick: bool) -> Load:
    """Mix prompts of two lengths; a negative share alternates between them in blocks of two batches."""
    count = clients * (3 if quick else 12)

    def make(rng: np.random.Generator) -> Workload:
        load = closed_loop(count, clients, Lengths(short, output, 0.0), rng)
        picked = rng.random(count) < share if share >= 0 else np.arange(count) // (2 * clients) % 2 == 1
        return replace(load, prompt_tok=np.where(picked, long, load.prompt_tok))

    return make
