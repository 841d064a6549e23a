from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sgl_dspark.errors import DsparkError
from sgl_dspark.reports.step_time import load_curves, save_step_time_plot, step_time_plot, step_time_table
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel


def a_model() -> StepTimeModel:
    """10 ms and 1 ms per token; a draft pass of 5 ms."""
    return StepTimeModel(verify=Curve([1, 101], [0.011, 0.111]), draft=Curve([1, 100], [0.005, 0.005]))


def test_expected_tokens_take_the_first_slot_of_all_before_the_second_of_any() -> None:
    (curve,) = load_curves(a_model(), [2], 3, acceptance=0.5)
    assert curve.expected_tokens.tolist() == [2.0, 2.5, 3.0, 3.25, 3.5, 3.625, 3.75]


def test_the_best_budget_is_where_throughput_peaks() -> None:
    # Seconds 16, 17, 18, 19 ms; tokens 1, 1.5, 1.75, 1.875: 62.5, 88.2, 97.2, 98.7 per second; plain 1 in 11 ms.
    (curve,) = load_curves(a_model(), [1], 3, acceptance=0.5)
    assert curve.best_budget == 3
    assert curve.gain == pytest.approx(1.875 / 0.019 * 0.011)
    # With a staircase after two tokens the third and fourth do not pay.
    stairs = StepTimeModel(verify=Curve([2, 8], [0.011, 0.030], stairs=True), draft=Curve([1], [0.005]))
    assert load_curves(stairs, [1], 3, acceptance=0.5)[0].best_budget == 1


def test_context_is_asked_for_per_request() -> None:
    model = StepTimeModel(verify=Curve([1], [1.0]), context_token_s=1e-3)
    (curve,) = load_curves(model, [4], 1, context_per_request=100)
    assert curve.plain_s - model.plain_time(4, 0) == pytest.approx(0.4)


def test_the_table_shows_milliseconds_per_draft_of_each_request() -> None:
    lines = step_time_table(load_curves(a_model(), [1, 4], 2, acceptance=0.5)).splitlines()
    assert lines[0].split() == ["requests", "plain", "+0", "+1", "+2", "best", "K", "over", "plain"]
    # R = 4: plain 14; drafted with 4, 8 and 12 tokens: 19, 23, 27. Throughput 211, 261, 259: K = 4 is best.
    assert lines[3].split() == ["4", "14.00", "19.00", "23.00", "27.00", "4", "0.91x"]


def test_the_plot_puts_slower_steps_higher_and_names_every_load() -> None:
    lines = step_time_plot(load_curves(a_model(), [1, 8], 4), width=40, height=10).splitlines()
    assert lines[0].endswith("b")
    assert lines[9].split("|")[1].startswith("a")
    assert lines[0].split("|")[0].strip() == "55 ms"
    assert lines[-1].strip() == "a R=1, b R=8"
    assert "40 verify tokens" in lines[-2]
    assert all(len(line) <= 52 for line in lines)


def test_one_load_of_one_price_can_be_plotted() -> None:
    flat = StepTimeModel(verify=Curve([64], [0.01], stairs=True))
    assert "a" in step_time_plot(load_curves(flat, [1], 1))


def test_the_drawing_is_a_picture_that_is_not_blank(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "steps.png"
    save_step_time_plot(path, load_curves(a_model(), [1, 8, 32], 7), "a title")
    pixels = image.imread(path)
    assert pixels.shape[0] > 300
    assert float(np.std(pixels[..., :3])) > 0.05


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(DsparkError, match="no load to draw"):
        save_step_time_plot(tmp_path / "steps.png", [])
