"""Ranking on the device equals the planner's own, without a synchronisation, and blind to values where they tie."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_sglang.allocate import admit, admit_within, survival_of
from sgl_dspark.planner.allocate import admit as admit_on_host
from tests.support.fake_graph import NoSync

# Few distinct values: ties are the rule.
ROWS = st.integers(1, 5).flatmap(
    lambda gamma: st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=gamma, max_size=gamma), min_size=1, max_size=6
    )
)


@given(rows=ROWS, budget=st.integers(0, 40))
def test_it_equals_the_planners(rows: list[list[float]], budget: int) -> None:
    survival = torch.tensor(rows).cumprod(1)
    with NoSync():
        found = admit_within(survival, torch.tensor(budget))
    assert found.tolist() == admit(survival, budget).tolist()
    assert found.tolist() == admit_on_host(survival.numpy().astype(np.float32), budget).tolist()


@given(rows=ROWS, budget=st.integers(0, 20), at=st.integers(0, 100))
def test_a_slot_is_admitted_whatever_lies_behind_it(rows: list[list[float]], budget: int, at: int) -> None:
    """What a later slot of the same block holds moves nothing before it but by taking budget from others."""
    confidence = torch.tensor(rows)
    r, j = at % len(rows), (at // len(rows)) % confidence.shape[1]
    raised = confidence.clone()
    raised[r, j] = 1.0
    before, after = (admit_within(c.cumprod(1), torch.tensor(budget)) for c in (confidence, raised))
    assert min(int(before[r]), j) <= int(after[r])


def test_survival_on_the_device_needs_no_synchronisation() -> None:
    logits = torch.tensor([[0.5, float("nan"), 2.0], [float("inf"), float("-inf"), 0.0]])
    with NoSync():
        found = survival_of(logits, torch.ones(2, 3), torch.zeros(2, 3))
    assert found.isfinite().all()
    assert found[0, 1:].tolist() == [0.0, 0.0]
    assert found[1].tolist() == [1.0, 0.0, 0.0]
