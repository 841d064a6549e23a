"""The frontier and what is read off it, on points drawn on paper."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_loadtest.frontier import Between, Point, between, frontier, speed_at, value_at
from dspark_loadtest.pareto import summarise_sweep
from tests.support.records import run_of

# A falling line with one point below it.
POINTS = [Point(10, 100, 4), Point(20, 80, 2), Point(40, 20, 1), Point(15, 60, 3)]


def test_points_that_another_beats_are_not_on_it() -> None:
    assert [p.load for p in frontier(POINTS)] == [4, 2, 1]
    assert len(frontier([Point(1, 1, 1), Point(1, 1, 2)])) == 2


def test_values_are_linear_between_neighbours_and_none_outside() -> None:
    assert value_at(POINTS, 20) == 80
    assert value_at(POINTS, 30) == 50
    assert value_at(POINTS, 9) is None
    assert value_at(POINTS, 41) is None
    assert speed_at(POINTS, 50) == 30
    assert speed_at(POINTS, 101) is None


def test_area_between_two_lines() -> None:
    baseline = [Point(10, 50, 2), Point(30, 30, 1)]
    # Over [10, 30]: (100+80)/2*10 + (80+50)/2*10 = 1550 against (50+30)/2*20 = 800.
    assert between(POINTS, baseline) == Between(10, 30, 750, pytest.approx(1550 / 800))
    assert between(POINTS, [Point(50, 5, 1), Point(60, 4, 1)]) is None
    assert between([], baseline) is None


@given(st.lists(st.builds(Point, st.floats(0, 100), st.floats(0, 100), st.just(1.0)), min_size=1, max_size=12))
def test_every_point_lies_on_or_below_the_frontier(points: list[Point]) -> None:
    front = frontier(points)
    assert front
    for point in points:
        assert any(p.x >= point.x and p.y >= point.y for p in front)
    assert frontier(front) == front


def test_a_sweep_is_reduced_to_medians_spread_and_ratios_within_a_repeat() -> None:
    plain = [run_of(r, "plain", load, 40 / load + r, 40 + 10 * load) for r in range(3) for load in (1, 2, 4)]
    ours = [run_of(r, "adaptive", load, 80 / load + 2 * r, 80 + 20 * load) for r in range(3) for load in (1, 2, 4)]
    summary = summarise_sweep([*plain, *ours], [30.0, 500.0], baseline="plain", devices=2)
    arm = summary["arms"]["adaptive"]
    assert arm["points"][0]["tok_s_user"] == {"median": 82, "low": 80, "high": 84}
    assert arm["points"][0]["output_tok_s"]["median"] == 100
    # Median points (22, 80), (42, 60), (82, 50), per device; 30 is 8 of 20 past the first.
    assert arm["anchors"]["30"]["output_tok_s"] == pytest.approx(80 - 20 * 8 / 20)
    assert arm["anchors"]["30"]["repeats"] == 3
    assert arm["anchors"]["500"] == {"output_tok_s": None, "low": None, "high": None, "repeats": 0}
    assert arm["against_baseline"]["at_equal_load"][0]["output_tok_s"] == {"median": 2, "low": 2, "high": 2}
    assert arm["against_baseline"]["between"]["ratio"] > 1
    assert summary["arms"]["plain"]["against_baseline"] is None
    assert arm["inferencex"][0] == {
        "conc": 1,
        "tput_per_gpu": pytest.approx(50),
        "output_tput_per_gpu": 50,
        "median_intvty": pytest.approx(82),
        "p90_intvty": pytest.approx(41),
        "median_tpot": pytest.approx(1 / 82),
        "median_ttft": 0.1,
    }
    assert asdict(Point(1, 2, 3)) == {"x": 1, "y": 2, "load": 3}
