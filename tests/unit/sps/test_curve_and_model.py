from __future__ import annotations

import numpy as np
import pytest

from sgl_dspark.planner.prefix import early_stop
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel
from sgl_dspark.sps.table import SpsTable


def test_between_knots_a_line_and_below_the_first_its_cost() -> None:
    curve = Curve([4, 8], [1.0, 3.0])
    assert [curve.at(size) for size in (0, 1, 4, 5, 6, 8)] == [1.0, 1.0, 1.0, 1.5, 2.0, 3.0]


def test_stairs_cost_what_the_next_knot_costs() -> None:
    curve = Curve([4, 8, 16], [1.0, 2.0, 3.0], stairs=True)
    assert curve.window(3, 7).tolist() == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0]


def test_beyond_the_last_knot_the_average_cost_where_the_last_slopes_are_flat() -> None:
    assert Curve([1, 10], [5.0, 5.0]).at(14) == pytest.approx(5.0 + 4 * 0.5)


def test_beyond_the_last_knot_the_steepest_of_the_last_three_slopes() -> None:
    # Slopes 9, 0.1, 2, 0.1: the first is too far back to count, the average 12.2/5 = 2.44 is above 2.
    curve = Curve([1, 2, 3, 4, 5], [1.0, 10.0, 10.1, 12.1, 12.2])
    assert curve.at(6) == pytest.approx(12.2 + 2.44)
    # Slopes 3, 0.1, 0.1 count; the average 3.3/103 is below.
    assert Curve([100, 101, 102, 103], [0.1, 3.1, 3.2, 3.3]).at(104) == pytest.approx(3.3 + 3.0)


def test_beyond_the_largest_graph_stairs_are_not_free() -> None:
    curve = Curve([8, 16], [1.0, 2.0], stairs=True)
    assert curve.at(20) == pytest.approx(2.0 + 4 * 0.125)


def test_one_knot_is_a_curve() -> None:
    assert Curve([2], [1.0]).at(6) == pytest.approx(3.0)


def test_a_staircase_prices_tiers_by_the_curve() -> None:
    stairs = Curve([1, 8], [1.0, 8.0]).staircase([2, 4, 16])
    assert stairs.seconds.tolist() == [2.0, 4.0, 16.0]
    assert stairs.at(3) == 4.0


def test_replaced_seconds_are_made_monotone_and_keep_the_knots() -> None:
    curve = Curve([1, 2, 4], [1.0, 2.0, 3.0])
    other = curve.replaced(np.array([2.0, 1.0, 5.0]))
    assert other.seconds.tolist() == [2.0, 2.0, 5.0]
    assert other.at(3) == 3.5
    assert curve.at(3) == 2.5


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [([], []), ([1, 2], [1.0]), ([0, 1], [1.0, 2.0]), ([2, 2], [1.0, 2.0]), ([1, 2], [2.0, 1.0]), ([1], [np.nan])],
)
def test_what_is_no_cost_is_refused(sizes: list[int], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        Curve(sizes, seconds)


def model_of_lines() -> StepTimeModel:
    return StepTimeModel(
        verify=Curve([1, 101], [10.0, 110.0]),
        draft=Curve([1, 11], [2.0, 7.0]),
        verify_request_s=0.125,
        accept_s=0.5,
        accept_request_s=0.25,
        accept_token_s=0.125,
        context_token_s=0.01,
        context_query_s=0.001,
        draft_context_s=0.002,
        prefill_token_s=0.3,
        host_s=1.0,
        host_request_s=0.05,
    )


def test_a_step_is_the_sum_of_its_terms() -> None:
    # R = 4, K = 6, B = 10, 200 context tokens, 5 prefilled.
    verify, draft, accept = 19.0, 3.5 + 0.002 * 200, 0.5 + 0.25 * 4 + 0.125 * 4 + 0.125 * 10
    context, host = 200 * (0.01 + 0.001 * 10 / 4), 1.0 + 0.05 * 4
    times = model_of_lines().step_times(4, 3, 200, prefill_tokens=5)
    assert times.shape == (13,)
    assert times[6] == pytest.approx(verify + draft + accept + context + host + 0.3 * 5)


def test_a_plain_step_pays_neither_draft_nor_acceptance() -> None:
    assert model_of_lines().plain_time(4, 200, 5) == pytest.approx(13.0 + 0.125 * 4 + 200 * 0.011 + 1.2 + 1.5)


def test_rows_that_are_not_drafted_are_not_paid_for() -> None:
    model = model_of_lines()
    saved = model.step_times(4, 3, 200) - model.step_times(4, 3, 200, drafted=1)
    assert saved == pytest.approx(np.full(13, 1.5 + 0.002 * 200 * 3 / 4))
    assert model.draft_row_s(4) == pytest.approx(0.5)


def test_a_probed_plain_step_takes_the_place_of_verification() -> None:
    model = StepTimeModel(verify=Curve([1], [10.0]), plain=Curve([1], [4.0]))
    assert model.plain_time(1, 0) == 4.0
    assert model.step_times(1, 2, 0)[0] == 10.0


def test_tiers_are_those_of_the_verification() -> None:
    assert model_of_lines().tiers is None
    tiers = StepTimeModel(verify=Curve([4, 8], [1.0, 2.0], stairs=True)).tiers
    assert tiers is not None
    assert tiers.tolist() == [4, 8]


def test_terms_that_are_no_times_are_refused() -> None:
    with pytest.raises(ValueError, match="host_s must be finite and at least 0, not -1"):
        StepTimeModel(verify=Curve([1], [1.0]), host_s=-1.0)
    with pytest.raises(ValueError, match="more than no time"):
        StepTimeModel(verify=Curve([1], [0.0]))


def test_the_table_never_promises_a_rate_better_than_measured() -> None:
    table = SpsTable([4, 8], [100.0, 50.0])
    assert [table.sps(tokens) for tokens in (1, 4, 5, 8)] == pytest.approx([100.0, 100.0, 50.0, 50.0])
    assert table.sps(16) <= 25.0


def test_the_table_of_a_model_is_the_reciprocal_of_its_times() -> None:
    model = model_of_lines()
    table = SpsTable.of_model(model, 4, 3, 200)
    assert table.step_times(4, 3) == pytest.approx(model.step_times(4, 3, 200))
    assert table.sps(10) == pytest.approx(1.0 / model.step_times(4, 3, 200)[6])


@pytest.mark.parametrize("rates", [[1.0, 2.0], [1.0, 0.0], [1.0, np.inf]])
def test_rates_that_rise_or_are_none_are_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match=r"non-decreasing|above 0"):
        SpsTable([1, 2], rates)


def test_algorithm_1_on_the_table_of_appendix_a_stops_before_the_second_draft() -> None:
    # SPS(1..3) = 1, 0.5, 0.45; a1 = 0.8: 1.8 * 0.5 = 0.9 < 1, so nothing is admitted although 2.52 * 0.45 > 1.
    table = SpsTable([1, 2, 3], [1.0, 0.5, 0.45])
    capacity, lens = early_stop(np.array([[0.8, 0.72]], dtype=np.float32), table.step_times(1, 2))
    assert capacity.budget == 0
    assert lens.tolist() == [0]


def test_algorithm_1_admits_by_the_rate_of_the_table() -> None:
    # 1 * 1 < 1.9 * 0.8 < 2.7 * 0.7 > 3.3 * 0.3.
    table = SpsTable([1, 2, 3, 4], [1.0, 0.8, 0.7, 0.3])
    capacity, lens = early_stop(np.array([[0.9, 0.8, 0.6]], dtype=np.float32), table.step_times(1, 3))
    assert (capacity.budget, lens.tolist()) == (2, [2])
    assert capacity.step_time_s == pytest.approx(1 / 0.7)
