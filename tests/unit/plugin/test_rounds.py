from __future__ import annotations

import numpy as np

from dspark_sglang.rounds import RoundLog
from sgl_dspark.calibration.records import from_wire


def fill(log: RoundLog, start: int, count: int) -> None:
    numbers = np.arange(start, start + count)
    logits = np.repeat(numbers[:, None], log.gamma, 1).astype(np.float32)
    log.append(logits, numbers % (log.gamma + 1), numbers % (log.gamma + 1) // 2, numbers % 2 == 1)


def test_a_reply_is_what_was_appended() -> None:
    log = RoundLog(3, capacity=16)
    fill(log, 0, 5)
    fill(log, 5, 4)
    records, following = from_wire(log.reply(2))
    assert following == 9
    assert records.logits[:, 0].tolist() == list(range(2, 9))
    assert records.verified.tolist() == [n % 4 for n in range(2, 9)]
    assert records.accepted.tolist() == [n % 4 // 2 for n in range(2, 9)]
    assert records.sampled.tolist() == [n % 2 == 1 for n in range(2, 9)]


def test_old_rounds_are_overwritten_and_the_reply_says_where_it_begins() -> None:
    log = RoundLog(2, capacity=8)
    for start in range(0, 21, 3):
        fill(log, start, 3)
    reply = log.reply(0)
    assert (reply["first"], reply["next"], reply["count"]) == (13, 21, 8)
    assert from_wire(reply)[0].logits[:, 1].tolist() == list(range(13, 21))


def test_asking_for_what_is_not_there_yet_gives_nothing() -> None:
    log = RoundLog(2, capacity=8)
    fill(log, 0, 3)
    reply = log.reply(7)
    assert (reply["next"], reply["count"]) == (3, 0)


def test_a_confidence_that_is_not_finite_is_left_out() -> None:
    log = RoundLog(2, capacity=8)
    logits = np.array([[0.0, 1.0], [np.nan, 1.0], [2.0, np.inf], [3.0, 1.0]], np.float32)
    log.append(logits, np.full(4, 2), np.arange(4) % 2, np.zeros(4, bool))
    records, following = from_wire(log.reply(0))
    assert following == 2
    assert records.logits[:, 0].tolist() == [0.0, 3.0]
    assert records.accepted.tolist() == [0, 1]
