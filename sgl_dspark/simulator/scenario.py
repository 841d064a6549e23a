"""One condition of a study: a load on a machine, served under several policies with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sgl_dspark.simulator.acceptance import Acceptance, Synthetic, SyntheticConfig
from sgl_dspark.simulator.arms import Arm
from sgl_dspark.simulator.arrivals import Ints, Workload
from sgl_dspark.simulator.engine import Engine, EngineConfig
from sgl_dspark.simulator.log import Log
from sgl_dspark.simulator.machines import Machine
from sgl_dspark.simulator.results import Figures, measure

Load = Callable[[np.random.Generator], Workload]
Source = Callable[[Ints, int], Acceptance]


def synthetic(config: SyntheticConfig, gamma: int) -> Source:
    """Return a maker of synthetic acceptance for given output lengths (int64 [N]) and a seed."""
    return lambda output_tok, seed: Synthetic(config, gamma, output_tok, seed)


@dataclass(frozen=True)
class Scenario:
    """A load on a machine.

    Attributes
    ----------
    name : str
        Shown in results.
    load : callable
        Makes the workload from a random generator.
    acceptance : callable
        Makes drafts and outcomes from output lengths and a seed.
    machine : Machine
        What steps take.
    engine : EngineConfig
        Limits.
    """

    name: str
    load: Load
    acceptance: Source
    machine: Machine
    engine: EngineConfig = EngineConfig()


def run_arm(scenario: Scenario, arm: Arm, workload: Workload, acceptance: Acceptance) -> Log:
    """Serve one workload under one policy."""
    controller = arm.controller(acceptance.gamma, scenario.engine.max_running, scenario.machine.steps)
    return Engine(scenario.engine, workload, acceptance, scenario.machine, controller).run()


def compare(scenario: Scenario, arms: Sequence[Arm], seeds: Sequence[int]) -> dict[str, list[Figures]]:
    """Serve the same workloads and drafts under every policy.

    Parameters
    ----------
    scenario : Scenario
        Load and machine.
    arms : sequence of Arm
        Policies, with distinct names.
    seeds : sequence of int
        One run per arm each; figure i of every arm comes from seed i.

    Returns
    -------
    dict
        Arm name to one :class:`Figures` per seed.
    """
    figures: dict[str, list[Figures]] = {arm.name: [] for arm in arms}
    for seed in seeds:
        workload = scenario.load(np.random.default_rng([seed, 0x10AD]))
        acceptance = scenario.acceptance(workload.output_tok, seed)
        for arm in arms:
            log = run_arm(scenario, arm, workload, acceptance)
            figures[arm.name].append(measure(log, steady=workload.concurrency is not None))
    return figures
