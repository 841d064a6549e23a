"""Whatever the load, the limits and the policy: tokens are conserved, the queue is fair and time adds up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_dspark.planner.policy import PlannerConfig
from sgl_dspark.simulator.acceptance import Drafts, Synthetic, SyntheticConfig
from sgl_dspark.simulator.arms import Arm, static_arm
from sgl_dspark.simulator.arrivals import Workload
from sgl_dspark.simulator.engine import Batch, Controller, Engine, EngineConfig, Plan
from sgl_dspark.simulator.machines import MACHINES, cpu_like
from sgl_dspark.simulator.results import measure
from sgl_dspark.simulator.variants import HullStop

GAMMA = 4
ARMS = (
    Arm("plain"),
    static_arm(GAMMA),
    Arm("adaptive", PlannerConfig(smoothing_rows=0.0, probe_interval=2)),
    Arm("early-stop", PlannerConfig(policy="early-stop")),
    Arm("threshold", PlannerConfig(policy="threshold", threshold=0.6)),
    Arm("hull", variant=HullStop),
)
requests = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 400), st.integers(1, 40)),
    min_size=1,
    max_size=25,
)


def workload(rows: list[tuple[float, int, int]], clients: int | None) -> Workload:
    gaps, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    arrivals = np.zeros(len(rows)) if clients else np.cumsum(gaps)
    return Workload(arrivals, prompts.astype(np.int64), outputs.astype(np.int64), clients)


@given(
    rows=requests,
    clients=st.none() | st.integers(1, 6),
    slots=st.integers(1, 5),
    chunk=st.integers(1, 500),
    arm=st.sampled_from(ARMS),
    machine=st.sampled_from(sorted(MACHINES)),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=150, deadline=None)
def test_tokens_are_conserved_the_queue_is_fair_and_time_adds_up(
    rows: list[tuple[float, int, int]],
    clients: int | None,
    slots: int,
    chunk: int,
    arm: Arm,
    machine: str,
    seed: int,
) -> None:
    load, speed = workload(rows, clients), MACHINES[machine]()
    source = Synthetic(SyntheticConfig(), GAMMA, load.output_tok, seed)
    log = Engine(EngineConfig(slots, chunk), load, source, speed, arm.controller(GAMMA, slots, speed.steps)).run()
    assert (log.emitted_tok == load.output_tok).all()
    assert log.prefill_tok + log.column("emitted").sum() == load.output_tok.sum()
    assert (np.diff(log.admitted_s) >= 0).all()
    assert (log.admitted_s >= log.arrival_s).all()
    assert (log.finish_s >= log.first_token_s).all()
    assert log.column("requests").max(initial=0) <= min(slots, clients or slots)
    assert (log.column("correct") <= log.column("verified")).all()
    assert (log.column("verified") <= GAMMA * log.column("drafted")).all()
    busy = log.column("seconds").sum() + log.prefill_busy_s
    idle = log.end_s - busy
    assert idle >= -1e-9
    if clients:
        assert abs(idle) < 1e-9
    assert 0 < measure(log).utilisation <= 1 + 1e-9


class Whim:
    """Verifies lengths drawn at random: any non-anticipating policy."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def plan(self, batch: Batch, drafts: Drafts) -> Plan:
        return Plan(self._rng.integers(0, GAMMA + 1, len(batch.slots)), len(batch.slots))


@given(seed=st.integers(0, 2**16))
@settings(max_examples=10, deadline=None)
def test_a_verified_slot_is_accepted_at_its_rate_whoever_decides(seed: int) -> None:
    load = Workload(np.zeros(4), np.ones(4, np.int64), np.full(4, 1500))
    controller: Controller = Whim(seed)
    source = Synthetic(SyntheticConfig(constant=0.6), GAMMA, load.output_tok, seed)
    log = Engine(EngineConfig(4), load, source, cpu_like(), controller).run()
    # Lengths 0..4 alike: expected correct drafts are the mean over lengths of 0.6 + 0.6^2 + ... .
    expected = np.mean([sum(0.6**k for k in range(1, length + 1)) for length in range(GAMMA + 1)])
    rounds = log.column("requests").sum()
    # A round's correct drafts deviate by about 1.1.
    assert abs(log.column("correct").sum() / rounds - expected) < 5 * 1.1 / np.sqrt(rounds)
