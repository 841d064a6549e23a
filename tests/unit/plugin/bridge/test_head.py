"""Calibration inside SGLang's real confidence head, and back from its confidences to its logits."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sglang")

import torch
from sglang.srt.models.dspark import DSparkConfidenceHead

from dspark_sglang.bridge.head import HeadCalibration, logits_of

GAMMA, RAW = 3, [[-4.0, 0.5, 3.0], [12.0, -12.0, 0.0]]


def predict(head: DSparkConfidenceHead) -> tuple[torch.Tensor, torch.Tensor]:
    """Ask the head as SGLang's draft does, with features that give exactly `RAW`."""
    with torch.no_grad():
        head.proj.weight.fill_(0.0)[0, 0] = 1.0
        head.proj.bias.zero_()
        features = torch.zeros(2, GAMMA, 4)
        features[..., 0] = torch.tensor(RAW)
        tokens = torch.zeros(2, GAMMA, dtype=torch.int64)
        return head.predict(features, anchor_tokens=tokens[:, 0], draft_tokens=tokens, markov_head=None)


@pytest.mark.parametrize("scale", [None, ([0.5, 1.0, 2.0], [0.1, -0.2, 0.0])])
def test_the_head_is_calibrated_per_slot_and_can_be_undone(scale: tuple[list[float], list[float]] | None) -> None:
    head = DSparkConfidenceHead(hidden_size=4, markov_rank=0, with_markov=False)
    calibration = HeadCalibration(head, GAMMA, "cpu")
    inverse, biases = (np.array(part, np.float32) for part in scale or ([1.0] * GAMMA, [0.0] * GAMMA))
    calibration.follow(inverse, biases)
    confidence, raw = predict(head)
    assert raw.tolist() == RAW
    assert confidence.numpy() == pytest.approx(1 / (1 + np.exp(-(np.array(RAW) * inverse + biases))), rel=1e-5)
    undone = logits_of(confidence.numpy(), calibration.in_force)
    assert undone == pytest.approx(np.array(RAW), rel=1e-3, abs=0.05)


def test_another_calibration_is_written_where_captured_graphs_read() -> None:
    head = DSparkConfidenceHead(hidden_size=4, markov_rank=0, with_markov=False)
    calibration = HeadCalibration(head, GAMMA, "cpu")
    places = calibration._inverse.data_ptr(), calibration._biases.data_ptr()
    before = calibration.in_force
    learned = np.full(GAMMA, 0.5, np.float32)
    calibration.follow(learned, np.ones(GAMMA, np.float32))
    # What is learned goes on changing in place; what is in force does not.
    learned[:] = 9.0
    assert calibration.in_force[0].tolist() == [0.5] * GAMMA
    assert before[0].tolist() == [1.0] * GAMMA
    assert calibration._inverse.tolist() == [0.5] * GAMMA
    assert (calibration._inverse.data_ptr(), calibration._biases.data_ptr()) == places


def test_certainty_is_finite_and_what_is_no_probability_is_nan() -> None:
    plain = np.ones(4, np.float32), np.zeros(4, np.float32)
    found = logits_of(np.array([[0.0, 1.0, np.nan, 1.5]], np.float32), plain)
    assert np.isfinite(found[0, :2]).all()
    assert found[0, 0] < -60
    assert found[0, 1] > 16
    assert np.isnan(found[0, 2:]).all()
