"""Step times from the steps that are served: every budget is tried, and only certain times are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dspark_sglang.bridge.profile import PATIENCE, REPEATS, REST, SHARES, SelfProfile, load_of
from sgl_dspark.sps.fit import fit

GAMMA = 7


def seconds_of(requests: int, budget: int) -> float:
    return 0.01 + 0.001 * requests + 0.0005 * budget


def serve(profile: SelfProfile, requests: int, steps: int) -> list[int]:
    """Serve steps of one size as the scheduler does; returns the budgets that were tried."""
    tried: list[int] = []
    before = None
    for _ in range(steps):
        budget = profile.wanted(requests)
        if budget is None:
            break
        if before == budget:
            profile.note(requests, budget, 100, seconds_of(requests, budget))
        before = budget
        tried.append(budget)
    return tried


@pytest.mark.parametrize(("requests", "load"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (64, 64), (65, 128)])
def test_a_load_is_the_next_power_of_two(requests: int, load: int) -> None:
    assert load_of(requests) == load


def test_a_load_is_profiled_in_a_few_steps_and_then_no_more() -> None:
    profile = SelfProfile(GAMMA)
    tried = serve(profile, 4, 100)
    assert sorted(set(tried)) == profile.budgets(4) == [0, 7, 14, 21, 28]
    # The first step of each budget stands beside another one, so its time may be the other's.
    assert len(tried) == (REPEATS + 1) * len(SHARES)
    assert profile.wanted(3) is None
    assert profile.wanted(5) is not None


def test_the_model_prices_what_was_served() -> None:
    profile = SelfProfile(GAMMA)
    for requests in (1, 2, 4, 8):
        serve(profile, requests, 100)
    model = fit(profile.probes())
    for requests in (1, 2, 4, 8):
        times = model.step_times(requests, GAMMA, 100)
        expected = [seconds_of(requests, k) for k in profile.budgets(requests)]
        assert times[profile.budgets(requests)] == pytest.approx(expected, rel=0.05)
        assert np.all(np.diff(times) >= 0)


def test_budgets_fill_the_graphs_that_exist() -> None:
    profile = SelfProfile(GAMMA, np.array([8, 16, 24, 32]))
    assert profile.budgets(3) == [5, 5, 13, 21, 21]
    # Beyond the largest graph a step runs at its own size.
    assert profile.budgets(5) == [3, 11, 19, 27, 35]
    assert set(serve(profile, 3, 100)) == {5, 13, 21}


def test_a_load_that_cannot_be_timed_is_left_alone_for_a_while() -> None:
    profile = SelfProfile(GAMMA)
    for _ in range(PATIENCE):
        assert profile.wanted(2) == 0
    assert profile.wanted(2) is None
    rested = 1
    while profile.wanted(2) is None:
        rested += 1
    assert rested == REST


def test_an_earlier_start_is_not_profiled_again_and_stays_known() -> None:
    first = SelfProfile(GAMMA)
    for requests in (1, 2, 4):
        serve(first, requests, 100)
    known = fit(first.probes())
    second = SelfProfile(GAMMA, None, known)
    assert all(second.wanted(requests) is None for requests in (1, 2, 3, 4))
    assert serve(second, 8, 100)
    model = fit(second.probes())
    for requests in (1, 2, 4, 8):
        expected = [seconds_of(requests, k) for k in second.budgets(requests)]
        assert model.step_times(requests, GAMMA, 100)[second.budgets(requests)] == pytest.approx(expected, rel=0.1)


def test_a_time_that_is_none_is_left_out() -> None:
    profile = SelfProfile(GAMMA)
    assert not profile.note(2, 0, 10, 0.0)
    assert profile.probes() == []


def test_what_was_profiled_is_kept_for_the_next_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    from dspark_sglang.bridge.knowledge import BridgeKnowledge
    from dspark_sglang.config import SchedulingConfig
    from sgl_dspark.sps.store import Fingerprint
    from tests.support.bridge_world import PRICED

    def start(profile: str | None = None, threads: int = 1, keep: bool = True) -> BridgeKnowledge:
        return BridgeKnowledge(
            SchedulingConfig(calibration="off", profile=profile),
            GAMMA,
            str(tmp_path),
            {},
            [8, 16],
            fingerprint=Fingerprint({"threads": threads}),
            path=tmp_path / "times.json",
            keep=keep,
        )

    start(keep=False).adopt(PRICED)
    assert start().known is None
    start().adopt(PRICED)
    found = start()
    assert found.step_time_source == "profile times.json"
    costs = found.costs(2, GAMMA, 0)
    assert costs is not None
    # SGLang's worker drafts in every step, so the cheapest step verifies no draft; it has nothing cheaper.
    assert costs.plain_s == costs.step_times[0]
    assert costs.draft_row_s == 0.0
    assert costs.tiers is not None
    assert costs.tiers.tolist() == [8, 16]
    assert start(threads=2).known is None
    assert start("off").known is None


def test_a_server_without_times_finds_them_and_plans_as_one_that_had_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("sglang")
    from dspark_sglang.bridge import scheduler
    from tests.support.bridge_world import BridgeWorld

    now = [0.0]
    monkeypatch.setattr(scheduler.time, "perf_counter", lambda: now[0])
    confidence = [[0.9, 0.85, 0.8], [0.5, 0.4, 0.3]]
    known = BridgeWorld(monkeypatch, tmp_path)
    fresh = BridgeWorld(monkeypatch, tmp_path, priced=False, profile=SelfProfile(3))
    tried = []
    for step in range(40):
        budget, _ = fresh.step(confidence, [1, 0])
        expected, _ = known.step(confidence, [1, 0])
        # As `PRICED` has it.
        now[0] += 0.01 + 0.002 * (2 + budget)
        tried.append(budget)
        if step == 10:
            # What a prefill takes is no step's.
            fresh.scheduler.interrupt(500)
            now[0] += 60.0
    assert fresh.scheduler.state()["step_time"]["source"] == "profiled while serving"
    assert set(tried[:20]) == {0, 2, 3, 4, 6}
    assert tried[-1] == expected
    assert fresh.scheduler.state()["planner"]["profiling"] < 30
