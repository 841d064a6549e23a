"""The serving loop: nothing is lost, the queue is fair, and time adds up."""

from __future__ import annotations

import numpy as np
import pytest

from sgl_dspark.errors import ConfigError
from sgl_dspark.simulator.acceptance import Drafts, Synthetic, SyntheticConfig
from sgl_dspark.simulator.arrivals import Lengths, Workload, bursty, closed_loop, draining, poisson
from sgl_dspark.simulator.engine import Batch, Engine, EngineConfig, Plan
from sgl_dspark.simulator.log import Log
from sgl_dspark.simulator.machines import MACHINES, Machine
from sgl_dspark.simulator.results import measure
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel

GAMMA = 5
ALIKE = Lengths(64, 50, 0.0, 0.0)
MIXED = Lengths(200, 30)
LINE = Machine("line", StepTimeModel(Curve([1, 1000], [1e-3, 11e-3]), Curve([1, 1000], [1e-4, 1e-4])), 1e-3, 1e-5)


class Fixed:
    """Verifies the same number of drafts of every request, and remembers the batches that it saw."""

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts
        self.batches: list[Batch] = []

    def plan(self, batch: Batch, drafts: Drafts) -> Plan:
        self.batches.append(batch)
        return Plan(np.full(len(batch.slots), self.drafts), len(batch.slots))


def serve(
    load: Workload, controller: Fixed | None, machine: Machine = LINE, slots: int = 8, chunk: int = 500, seed: int = 0
) -> Log:
    source = Synthetic(SyntheticConfig(), GAMMA, load.output_tok, seed)
    return Engine(EngineConfig(slots, chunk), load, source, machine, controller).run()


def loads(seed: int) -> list[Workload]:
    rng = np.random.default_rng(seed)
    return [
        poisson(60, 40.0, MIXED, rng),
        bursty(60, 40.0, 8.0, MIXED, rng),
        closed_loop(60, 5, MIXED, rng),
        draining(60, MIXED, rng),
    ]


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("drafts", [None, 0, 3, GAMMA])
def test_every_token_that_was_asked_for_is_emitted_once(kind: int, drafts: int | None) -> None:
    load = loads(kind)[kind]
    log = serve(load, None if drafts is None else Fixed(drafts))
    assert (log.emitted_tok == load.output_tok).all()
    assert log.prefill_tok + log.column("emitted").sum() == load.output_tok.sum()
    assert log.prefill_tok == len(load)


@pytest.mark.parametrize("kind", range(4))
def test_the_queue_is_first_in_first_out_and_time_runs_forward(kind: int) -> None:
    log = serve(loads(7)[kind], Fixed(2))
    assert (np.diff(log.admitted_s) >= 0).all()
    assert (np.diff(log.first_token_s) >= 0).all()
    assert (log.arrival_s <= log.admitted_s).all()
    assert (log.admitted_s < log.first_token_s).all()
    assert (log.first_token_s <= log.finish_s).all()
    assert log.end_s == log.finish_s.max()


def test_no_more_requests_run_than_there_are_slots_and_slots_change_generation() -> None:
    fixed = Fixed(3)
    serve(draining(60, MIXED, np.random.default_rng(0)), fixed, slots=6)
    assert max(len(batch.slots) for batch in fixed.batches) == 6
    tenants = {(int(s), int(g)) for batch in fixed.batches for s, g in zip(batch.slots, batch.generations, strict=True)}
    assert len(tenants) == 60
    assert {slot for slot, _ in tenants} == set(range(6))


@pytest.mark.parametrize("clients", [1, 4, 8])
def test_a_closed_loop_without_drafts_emits_its_requests_over_step_time(clients: int) -> None:
    log = serve(closed_loop(clients * 6, clients, ALIKE, np.random.default_rng(1)), None)
    figures = measure(log, steady=True)
    assert figures.decode_tok_s == pytest.approx(clients / LINE.steps.plain_time(clients, 0), rel=1e-12)
    assert figures.mean_running == pytest.approx(clients)
    assert figures.mean_verify_len == figures.mean_accept_len == 1.0
    assert figures.plain_steps == 1.0


def test_a_step_costs_what_the_machine_says_with_its_context() -> None:
    machine = Machine(
        "context", StepTimeModel(Curve([1, 2], [1.0, 2.0]), Curve([1, 2], [0.5, 0.5]), context_token_s=1.0)
    )
    load = Workload(np.zeros(1), np.array([10]), np.array([3]))
    source = Synthetic(SyntheticConfig(constant=1e-9), 1, load.output_tok, 0)
    log = Engine(EngineConfig(), load, source, machine, Fixed(1)).run()
    # Two steps of two verify tokens and a draft over 11, then 12 tokens; the first token came with the free prefill.
    assert log.column("seconds").tolist() == [2.0 + 0.5 + 11.0, 2.0 + 0.5 + 12.0]
    assert log.end_s == 28.0


def test_a_long_prompt_is_prefilled_in_chunks_before_the_next_one() -> None:
    load = Workload(np.zeros(2), np.array([1200, 100]), np.array([1, 1]))
    log = serve(load, None)
    # 500 + 500 tokens, then the last 200 with the whole second prompt.
    assert log.first_token_s == pytest.approx([3 * 1e-3 + 1300e-5] * 2)
    assert log.prefill_busy_s == pytest.approx(log.end_s)
    assert (log.emitted_tok == 1).all()


def test_littles_law_holds_for_running_requests() -> None:
    load = poisson(3000, 60.0, ALIKE, np.random.default_rng(2))
    log = serve(load, Fixed(2), slots=64)
    span = log.arrival_s[-1] - log.arrival_s[0]
    in_system = (log.finish_s - log.arrival_s).mean()
    inside = [np.sum((log.arrival_s <= t) & (log.finish_s > t)) for t in np.linspace(0.1, 0.9, 400) * span]
    assert np.mean(inside) == pytest.approx(len(load) / span * in_system, rel=0.1)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_same_seed_gives_the_same_run(machine: str) -> None:
    def once(seed: int) -> tuple[float, list[float]]:
        log = serve(poisson(30, 40.0, MIXED, np.random.default_rng(5)), Fixed(4), MACHINES[machine](), seed=seed)
        return log.end_s, log.finish_s.tolist()

    assert once(0) == once(0)
    assert once(0) != once(1)


def test_an_idle_engine_waits_for_the_next_request() -> None:
    load = Workload(np.array([1.0, 500.0]), np.array([10, 10]), np.array([2, 2]))
    log = serve(load, None)
    assert log.admitted_s.tolist() == [1.0, 500.0]
    assert measure(log).utilisation == pytest.approx(
        (log.column("seconds").sum() + log.prefill_busy_s) / (log.end_s - 1)
    )


def test_a_plan_that_verifies_without_drafts_is_refused() -> None:
    class Wrong(Fixed):
        def plan(self, batch: Batch, drafts: Drafts) -> Plan:
            return Plan(np.full(len(batch.slots), 1), 0)

    with pytest.raises(ConfigError, match="^lens: "):
        serve(loads(0)[0], Wrong(1))


@pytest.mark.parametrize("field", ["max_running", "prefill_chunk_tok"])
def test_wrong_limits_are_refused_by_field(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        EngineConfig(**{field: 0})
