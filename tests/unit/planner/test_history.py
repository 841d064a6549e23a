from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from sgl_dspark.planner.history import ConfidenceHistory, SlotMean

GAMMA = 3


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def rows(*values: float) -> NDArray[np.float32]:
    return np.repeat(np.array(values, dtype=np.float32)[:, None], GAMMA, axis=1)


@pytest.mark.parametrize("lag", [0, 1, 2, 4])
def test_a_publication_is_read_exactly_lag_steps_later(lag: int) -> None:
    history = ConfidenceHistory(8, GAMMA, lag=lag)
    history.advance()
    history.publish(ints(3), ints(0), rows(1.5))
    for _ in range(lag):
        assert not history.lagged(ints(3), ints(0)).known.any()
        assert history.settled_step == -1
        history.advance()
    read = history.lagged(ints(3), ints(0))
    assert read.known.all()
    assert read.settled_step == 1
    assert_array_equal(read.logits, rows(1.5))


def test_what_was_published_is_a_copy() -> None:
    history, logits, slots = ConfidenceHistory(8, GAMMA, lag=1), rows(1.0), ints(2)
    history.advance()
    history.publish(slots, ints(0), logits)
    logits[:] = 9.0
    slots[:] = 5
    history.advance()
    read = history.lagged(ints(2), ints(0)).logits
    assert_array_equal(read, rows(1.0))
    read[:] = 7.0
    assert_array_equal(history.lagged(ints(2), ints(0)).logits, rows(1.0))


def test_each_reason_is_counted_by_rows() -> None:
    history = ConfidenceHistory(8, GAMMA, lag=1, max_age=3)
    history.advance()
    history.publish(ints(0, 1, 2), ints(0, 0, 0), rows(1.0, 1.0, np.nan))
    history.advance()
    read = history.lagged(ints(0, 1, 2, 3), ints(0, 1, 0, 0))
    assert_array_equal(read.known, [True, False, False, False])
    assert read.counts == {"slot_reused": 1, "no_history": 1, "nan_confidence": 1}
    assert read.members_changed == 2
    for _ in range(3):
        history.advance()
    assert history.lagged(ints(0), ints(0)).counts == {"stale_history": 1}
    assert history.lagged(ints(0), ints(0)).members_changed == 0


def test_a_row_that_was_not_drafted_keeps_what_it_published() -> None:
    history = ConfidenceHistory(8, GAMMA, lag=1)
    for z in (1.0, 2.0, 3.0):
        history.advance()
        history.publish(
            ints(0, 1) if z == 1.0 else ints(0), ints(0, 0)[: 2 if z == 1.0 else 1], rows(z, z)[: 2 if z == 1.0 else 1]
        )
    history.advance()
    assert_array_equal(history.lagged(ints(0, 1), ints(0, 0)).logits, rows(3.0, 1.0))


def test_a_new_occupant_does_not_inherit_while_others_publish() -> None:
    # The generation changes when the slot is handed out, long before its first own publication.
    history = ConfidenceHistory(8, GAMMA, lag=1)
    history.advance()
    history.publish(ints(0, 1), ints(0, 0), rows(5.0, 5.0))
    for _ in range(3):
        history.advance()
        assert_array_equal(history.lagged(ints(0, 1), ints(0, 1)).known, [True, False])
        history.publish(ints(0), ints(0), rows(5.0))


def test_slot_mean_moves_from_its_prior_to_the_evidence_and_stays_below_one() -> None:
    mean = SlotMean(GAMMA, prior_confidence=0.5, prior_rows=8)
    np.testing.assert_allclose(mean.value, [0.5, 0.25, 0.125])
    mean.update(rows(1.0, 0.0), np.array([True, False]))
    np.testing.assert_allclose(mean.value, [(8 * 0.5 + 1) / 9, (8 * 0.25 + 1) / 9, (8 * 0.125 + 1) / 9], rtol=1e-6)
    assert mean.evidence_rows == 1
    for _ in range(100):
        mean.update(np.ones((512, GAMMA), dtype=np.float32))
    assert (mean.value < 1).all()
    assert (mean.value > 0.98).all()


def test_slot_mean_forgets() -> None:
    mean = SlotMean(GAMMA, memory_rows=64)
    for level in (0.9, 0.2):
        for _ in range(30):
            mean.update(np.full((16, GAMMA), level, dtype=np.float32))
        np.testing.assert_allclose(mean.value, level, atol=0.01)


def test_slot_mean_ignores_a_step_without_known_rows() -> None:
    mean = SlotMean(GAMMA)
    before = mean.value.copy()
    mean.update(rows(1.0), np.array([False]))
    assert_array_equal(mean.value, before)
    assert mean.evidence_rows == 0
