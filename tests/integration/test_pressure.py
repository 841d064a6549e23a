"""More than the KV pool holds: requests are taken back out and resumed, and their text stays the target's own."""

from __future__ import annotations

import pytest

from tests.integration.conftest import PlainAnswers
from tests.support import arms, pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server


def test_retraction_and_resumption(dspark: ServerProcess, plain: PlainAnswers) -> None:
    before = len(dspark.log())
    answers = arms.answer_all(dspark, arms.burst_requests(), arms.BURST)
    assert "Retract requests" in dspark.log()[before:]
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers.values()) > 0
    for name, answer in answers.items():
        assert arms.essence(answer) == arms.essence(plain.burst[name]), name


def test_prefixes_are_right_after_everything_was_evicted(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """The burst before this overwrote the pool; what is left of old prefixes, and what is new, serves as well."""
    requests = dict(list(arms.greedy_requests().items())[: arms.BURST])
    for _ in range(2):
        answers = arms.answer_all(dspark, requests)
        for name, answer in answers.items():
            assert arms.essence(answer) == arms.essence(plain.greedy[name]), name
    assert sum(answer["meta_info"]["cached_tokens"] for answer in answers.values()) > 0
    load = dspark.wait_until_idle()
    assert load["num_used_tokens"] == 0
    assert load["max_total_num_tokens"] == pair.KV_TOKENS
