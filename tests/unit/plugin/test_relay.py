from __future__ import annotations

import numpy as np
import torch

from dspark_sglang.relay import ConfidenceRelay, Sent


class Event:
    """A copy that arrives when the test says so."""

    def __init__(self) -> None:
        self.arrived = False

    def query(self) -> bool:
        return self.arrived


def send(relay: ConfidenceRelay, step: int) -> Sent:
    ids = np.arange(2)
    return relay.send(step, ids, ids, ids > 0, torch.full((2, 3), float(step)), torch.zeros(2, 3, dtype=torch.int64))


def test_on_a_cpu_everything_has_arrived() -> None:
    relay = ConfidenceRelay()
    for step in (1, 2):
        send(relay, step)
    assert [sent.step for sent in relay.receive()] == [1, 2]
    assert relay.receive() == []
    assert relay.waiting() == 0


def test_what_is_on_its_way_is_not_waited_for_and_keeps_its_order() -> None:
    relay = ConfidenceRelay()
    first, second = send(relay, 1), send(relay, 2)
    first.event, second.event = Event(), Event()
    second.event.arrived = True
    assert relay.receive() == []
    assert relay.waiting() == 2
    first.event.arrived = True
    assert [sent.step for sent in relay.receive()] == [1, 2]
