"""Step times: monotone, above zero and never free, whatever was measured and observed."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_dspark.planner.prefix import early_stop
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.fit import Probe, fit, isotonic
from sgl_dspark.sps.model import StepTimeModel
from sgl_dspark.sps.online import OnlineStepTime
from sgl_dspark.sps.store import Fingerprint, load, save
from sgl_dspark.sps.table import SpsTable
from tests.support.serving_steps import Machine, probed, serve

seconds = st.floats(1e-4, 1.0)
costs = st.floats(0.0, 1e-2)


@st.composite
def curves(draw: st.DrawFn, least: float = 1e-4) -> Curve:
    sizes = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=12)))
    rises = draw(st.lists(st.floats(0.0, 0.1), min_size=len(sizes), max_size=len(sizes)))
    return Curve(sizes, least + np.cumsum(rises), stairs=draw(st.booleans()))


@st.composite
def models(draw: st.DrawFn) -> StepTimeModel:
    return StepTimeModel(
        verify=draw(curves()),
        draft=draw(curves(0.0)),
        plain=draw(st.none() | curves()),
        verify_request_s=draw(costs),
        accept_s=draw(costs),
        accept_request_s=draw(costs),
        accept_token_s=draw(costs),
        context_token_s=draw(st.floats(0.0, 1e-5)),
        context_query_s=draw(st.floats(0.0, 1e-5)),
        draft_context_s=draw(st.floats(0.0, 1e-5)),
        prefill_token_s=draw(costs),
        host_s=draw(costs),
        host_request_s=draw(costs),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, int, int, int, int, float]:
    requests = draw(st.integers(1, 600))
    drafted = draw(st.integers(0, requests))
    budget = draw(st.integers(0, 7 * requests)) if drafted else 0
    context, prefill = draw(st.integers(0, 10**6)), draw(st.sampled_from([0, 0, 0, 512]))
    return requests, budget, drafted, context, prefill, draw(st.floats(1e-6, 100.0))


@given(curves(), st.integers(0, 400), st.integers(1, 500))
def test_a_window_is_the_curve_point_by_point(curve: Curve, first: int, count: int) -> None:
    assert curve.window(first, count).tolist() == [curve.at(size) for size in range(first, first + count)]


@given(curves(), st.integers(1, 1000))
def test_beyond_the_last_knot_no_size_is_free(curve: Curve, beyond: int) -> None:
    last = int(curve.sizes[-1])
    slopes = (np.diff(curve.seconds) / np.diff(curve.sizes))[-3:]
    least = max([float(curve.seconds[-1]) / last, *slopes.tolist()])
    assert curve.at(last + beyond) - curve.at(last) == pytest.approx(beyond * least, rel=1e-9)


@given(curves())
def test_stairs_are_never_below_the_line_and_both_meet_at_the_knots(curve: Curve) -> None:
    line, stairs = (Curve(curve.sizes, curve.seconds, kind) for kind in (False, True))
    size = np.arange(int(curve.sizes[-1]) + 1)
    assert np.all(stairs.window(0, size.shape[0]) >= line.window(0, size.shape[0]) * (1 - 1e-12))
    assert [stairs.at(int(knot)) for knot in curve.sizes] == pytest.approx(curve.seconds.tolist())


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 5.0)), min_size=1, max_size=7))
def test_the_isotonic_fit_is_the_best_of_all_partitions_into_levels(points: list[tuple[float, float]]) -> None:
    value, weight = np.array(points).T
    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(points) - 1):
        level = np.concatenate(([0], np.cumsum(cuts))).astype(int)
        means = np.bincount(level, weight * value) / np.bincount(level, weight)
        if np.all(np.diff(means) >= 0):
            best = min(best, float(np.sum(weight * (value - means[level]) ** 2)))
    found = isotonic(value, weight)
    assert np.all(np.diff(found) >= 0)
    assert float(np.sum(weight * (value - found) ** 2)) == pytest.approx(best, rel=1e-9, abs=1e-12)


@given(models(), st.integers(1, 40), st.integers(1, 7), st.integers(0, 10**5), st.data())
def test_more_of_anything_never_takes_less_time(
    model: StepTimeModel, requests: int, gamma: int, context: int, data: st.DataObject
) -> None:
    drafted = data.draw(st.integers(0, requests))
    times = model.step_times(requests, gamma, context, 3, drafted)
    assert times.shape == (requests * gamma + 1,)
    assert np.all(np.diff(times) >= 0)
    assert times[0] > 0
    slack = 1 + 1e-12
    assert np.all(times <= model.step_times(requests, gamma, context + 100, 3, drafted) * slack)
    assert np.all(times <= model.step_times(requests, gamma, context, 4, drafted) * slack)
    assert np.all(times <= model.step_times(requests, gamma, context, 3) * slack)
    assert model.plain_time(requests, context) <= model.plain_time(requests, context + 100) * slack
    assert model.plain_time(requests, context) > 0


@settings(max_examples=60)
@given(models(), st.lists(steps(), max_size=30), st.integers(1, 64), st.integers(1, 7), st.integers(0, 10**5))
def test_whatever_is_observed_answers_are_times_that_do_not_fall_with_tokens(
    model: StepTimeModel,
    observed: list[tuple[int, int, int, int, int, float]],
    requests: int,
    gamma: int,
    context: int,
) -> None:
    online = OnlineStepTime(model)
    for step in observed:
        online.observe(*step)
    times = online.step_times(requests, gamma, context)
    assert np.all(np.isfinite(times))
    assert times[0] > 0
    assert np.all(np.diff(times) >= 0)
    assert 0 < online.plain_time(requests, context, 5) < np.inf
    assert 0 <= online.draft_row_s(requests) < np.inf
    budget = requests * gamma // 2
    assert online.predict(requests, budget, requests, context) == pytest.approx(float(times[budget]), rel=1e-9)
    assert online.predict(requests, 0, 0, context) == online.plain_time(requests, context)
    exported = online.snapshot()
    assert np.all(np.diff(exported.step_times(requests, gamma, context)) >= 0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 64), st.floats(4.0, 100.0), st.booleans())
def test_one_outlier_moves_no_prediction_by_two_percent(seed: int, load: int, factor: float, drafted: bool) -> None:
    rng, machine = np.random.default_rng(seed), Machine()
    online = OnlineStepTime(probed(machine, rng))
    serve(machine, online, rng, 150, outliers=0.0)
    step = (load, 3 * load, load, 500 * load, 0) if drafted else (load, 0, 0, 500 * load, 0)
    before = [online.predict(r, 3 * r, r, 500 * r) for r in (1, 8, load, 64)]
    online.observe(*step, factor * machine.step(*step))
    assert [online.predict(r, 3 * r, r, 500 * r) for r in (1, 8, load, 64)] == pytest.approx(before, rel=0.02)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 3.0), st.floats(0.0, 0.15), st.floats(2e-4, 1e-2))
def test_a_served_machine_is_predicted_within_ten_percent(seed: int, slow: float, misfit: float, host_s: float) -> None:
    rng, machine = np.random.default_rng(seed), Machine(misfit=misfit, host_s=host_s)
    online = OnlineStepTime(probed(machine, rng))
    assert np.median(serve(machine, online, rng, 200).step[100:]) < 0.05
    assert online.error_median < 0.1
    errors = serve(machine.changed(slow=slow), online, rng, 250)
    assert np.median(errors.step[50:]) < 0.1
    assert np.median(errors.ratio[100:]) < 0.05
    assert online.error_median < 0.1


@given(models(), st.dictionaries(st.text(min_size=1, max_size=5), st.integers() | st.text(max_size=5), max_size=4))
def test_a_profile_comes_back_as_it_was(model: StepTimeModel, conditions: dict[str, str | int | float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        save(path, model, Fingerprint(conditions))
        loaded = load(path, Fingerprint(conditions))
    assert np.array_equal(loaded.step_times(5, 4, 999, 7, 3), model.step_times(5, 4, 999, 7, 3))
    assert loaded.plain_time(5, 999, 7) == model.plain_time(5, 999, 7)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 3), seconds), min_size=1, max_size=20), st.randoms())
def test_the_order_of_probes_does_not_matter(shapes: list[tuple[int, int, float]], shuffle: random.Random) -> None:
    probes = [Probe("verify", 1 + tokens // 4, tokens, 1000 * context, time) for tokens, context, time in shapes]
    model = fit(probes)
    shuffle.shuffle(probes)
    assert fit(probes).step_times(4, 7, 2000) == pytest.approx(model.step_times(4, 7, 2000), rel=1e-6)


@given(
    st.integers(1, 4).flatmap(
        lambda requests: st.lists(
            st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), min_size=requests, max_size=requests
        )
    ),
    st.lists(st.floats(0.0, 1.0), min_size=15, max_size=15),
)
def test_algorithm_1_on_the_table_is_the_paper_s_loop(confidence: list[list[float]], rises: list[float]) -> None:
    survival = np.cumprod(np.array(confidence, dtype=np.float32), axis=1)
    requests, gamma = survival.shape
    table = SpsTable(np.arange(1, 17), 1.0 / np.cumsum([1.0, *rises]))
    candidates = sorted(
        (-float(survival[r, j]), r, j) for r in range(requests) for j in range(gamma) if survival[r, j] > 0
    )
    lens, tokens, expected = [0] * requests, requests, float(requests)
    best = requests * table.sps(requests)
    for negative, r, j in candidates:
        rate = (expected - negative) * table.sps(tokens + 1)
        if rate <= best * (1 + 1e-12):
            close = rate >= best * (1 - 1e-12)
            break
        best, tokens, expected = rate, tokens + 1, expected - negative
        lens[r] = j + 1
    else:
        close = False
    capacity, found = early_stop(survival.astype(np.float64), table.step_times(requests, gamma))
    if not close:
        assert found.tolist() == lens
        assert capacity.budget == tokens - requests
