"""Where a step's time goes, from marks between its parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dspark_sglang.metrics.phases import PhaseClock
from tests.support.recorded import Engine, Request


def test_parts_add_up_to_the_step() -> None:
    engine, request = Engine(), Request("a", 1)
    step = engine.launch([request], [1])
    step.started_s, step.marks_s = 10.0, [10.1, 10.3, 10.35, 10.8]
    engine.recorder.timed(step, 0.0, 1.0)
    assert engine.value("dspark_phase_seconds_total") == pytest.approx([0.1, 0.2, 0.05, 0.45, 0.2])


def test_a_step_that_was_not_marked_through_is_left_out() -> None:
    phases = np.zeros(5)
    step = Engine().launch([Request("a", 1)], [1])
    PhaseClock().mark(step)
    PhaseClock().add(step, 1.0, phases)
    assert not phases.any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_time_is_read_once_it_has_passed() -> None:
    clock, phases = PhaseClock(torch.device("cuda")), np.zeros(5)
    work = torch.randn(2048, 2048, device="cuda")
    for _ in range(2):
        step = Engine().launch([Request("a", 1)], [1])
        for _ in range(4):
            clock.mark(step)
            for _ in range(20):
                work = work @ work * 1e-3
        torch.cuda.synchronize()
        clock.add(step, 10.0, phases)
    assert phases[1] > 0
    assert phases[3] > 0
