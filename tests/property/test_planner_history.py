"""The causal barrier: nothing younger than two steps reaches the planner, and no slot lends what it did not earn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sgl_dspark.planner.history import ConfidenceHistory
from sgl_dspark.planner.policy import Decision, Planner, PlannerConfig, StepCosts, StepView

SLOTS, GAMMA = 5, 3

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Published:
    step: int
    slot: int
    generation: int
    row: tuple[float, ...]


@settings(max_examples=200, deadline=None)
@given(lag=st.integers(0, 4), max_age=st.integers(1, 6), seed=st.integers(0, 10**6), late=st.booleans())
def test_lagged_is_the_last_publication_that_is_old_enough(lag: int, max_age: int, seed: int, late: bool) -> None:
    rng = np.random.default_rng(seed)
    history, log = ConfidenceHistory(SLOTS, GAMMA, lag, max_age), []
    generations = np.zeros(SLOTS, dtype=np.int64)
    for _ in range(30):
        step = history.advance()
        generations += rng.random(SLOTS) < 0.1
        slots = rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)]
        lagged = history.lagged(slots, generations[slots])
        changed = 0
        for r, slot in enumerate(slots):
            old = [p for p in log if p.slot == slot and p.step <= step - lag]
            mine = bool(old) and old[-1].generation == generations[slot]
            changed += not mine
            assert lagged.known[r] == (mine and old[-1].step >= step - max_age)
            if mine:
                assert tuple(lagged.logits[r].tolist()) == old[-1].row
        assert lagged.members_changed == changed
        assert sum(lagged.counts.values()) == (~lagged.known).sum()
        # A host that learns the confidences of a step only after launching the next one says so.
        at = max(step - int(late), 1)
        drafted = slots[rng.random(len(slots)) < 0.7]
        rows = rng.normal(size=(len(drafted), GAMMA)).astype(np.float32)
        history.publish(drafted, generations[drafted], rows, at)
        log += [
            Published(at, int(s), int(generations[s]), tuple(z.tolist())) for s, z in zip(drafted, rows, strict=True)
        ]


def run(seed: int, altered: frozenset[int], steps: int, config: PlannerConfig, draft_row_s: float) -> list[Decision]:
    """Decide ``steps`` steps of one random load; the confidences of the altered steps are drawn differently."""
    rng, planner = np.random.default_rng(seed), Planner(config, GAMMA, SLOTS)
    generations, decisions = np.zeros(SLOTS, dtype=np.int64), []
    for step in range(1, steps + 1):
        generations += rng.random(SLOTS) < 0.05
        slots = np.arange(SLOTS)[: int(rng.integers(1, SLOTS + 1))]
        plain_s = float(rng.uniform(0.8, 1.0))
        times = 1.0 + np.cumsum(rng.choice([0.0, 0.0, 0.2], size=len(slots) * GAMMA + 1))
        logits = rng.normal(0.5, 2, size=(len(slots), GAMMA)).astype(np.float32)
        if step in altered:
            logits = np.random.default_rng(step).normal(-1, 4, size=logits.shape).astype(np.float32)
        costs = StepCosts(plain_s, times, draft_row_s)
        view = StepView(slots, generations[slots], costs, np.ones((2, GAMMA), dtype=np.float32))
        decisions.append(planner.decide(view))
        if decisions[-1].draft:
            mask = decisions[-1].drafted
            rows = np.arange(len(slots)) if mask is None else np.flatnonzero(mask)
            planner.publish(slots[rows], generations[slots[rows]], logits[rows])
    return decisions


def same(one: Decision, other: Decision) -> bool:
    scalars = (one.draft, one.budget, one.expected_tokens, one.step_time_s, one.reason, one.probe)
    masks = [None if d.drafted is None else d.drafted.tolist() for d in (one, other)]
    others = (other.draft, other.budget, other.expected_tokens, other.step_time_s, other.reason, other.probe)
    return scalars == others and masks[0] == masks[1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), limit=st.none() | st.integers(0, 10))
def test_decisions_never_ask_for_more_than_is_drafted(seed: int, limit: int | None) -> None:
    config = PlannerConfig(row_patience=1, probe_interval=2, probe_interval_max=4, max_budget=limit)
    for decision in run(seed, frozenset(), 40, config, 0.02):
        assert decision.budget is not None
        assert 0 <= decision.budget <= SLOTS * GAMMA if limit is None else decision.budget <= limit
        assert decision.draft or decision.budget == 0
        if decision.drafted is not None:
            assert decision.drafted.any()
            assert decision.budget <= GAMMA * int(decision.drafted.sum())


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), last=st.integers(2, 40), rows=st.sampled_from([0.0, 0.01]))
def test_the_last_two_steps_never_change_a_decision(seed: int, last: int, rows: float) -> None:
    config = PlannerConfig(row_patience=1, probe_interval=2, probe_interval_max=4)
    plain = run(seed, frozenset(), last, config, rows)
    # Publications follow decisions, so step ``last`` itself is covered too.
    altered = run(seed, frozenset({last - 1, last}), last, config, rows)
    assert all(same(*pair) for pair in zip(plain, altered, strict=True))


def test_the_step_before_those_does_change_decisions() -> None:
    config = PlannerConfig()
    changed = [
        not same(
            run(seed, frozenset(), 12, config, 0.0)[-1],
            run(seed, frozenset({10}), 12, config, 0.0)[-1],
        )
        for seed in range(20)
    ]
    assert sum(changed) > 10


def test_publications_out_of_order_are_refused() -> None:
    history, one = ConfidenceHistory(SLOTS, GAMMA), np.zeros(1, dtype=np.int64)
    history.advance()
    history.advance()
    history.publish(one, one, np.zeros((1, GAMMA), dtype=np.float32))
    with pytest.raises(ValueError, match="keep their order"):
        history.publish(one, one, np.zeros((1, GAMMA), dtype=np.float32), step=1)
