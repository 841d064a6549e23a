"""Many short requests, many of whose clients go away: nothing keeps running, no slot is lost, memory is flat."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import PlainAnswers
from tests.support import arms, pair
from tests.support.server import ServerProcess, concurrently
from tests.support.slow_client import SlowClient

pytestmark = pytest.mark.server
EARLY, TOTAL, WORKERS = 600, 1300, 24
# What Python, the allocator and oneDNN (half a megabyte of code for a number of rows that it has not met yet) may still
# take after the first requests; a leak of one block's features per request (8 tokens x 5 layers x 128 x 4 bytes) would
# add 14 MiB over the others.
GROWTH_MIB = 12
# The most that the kernel takes of an answer for a connection that is not read, in bytes.
SEND_BUFFER = Path("/proc/sys/net/ipv4/tcp_wmem")


@dataclass(frozen=True)
class Visit:
    """One client: what it asks, and after how many events it goes away (None: it stays)."""

    prompt: int
    tokens: int
    temperature: float
    streamed: bool
    leaves_after: int | None


def visits() -> list[Visit]:
    random_ = random.Random(11)
    made = []
    for _ in range(TOTAL):
        streamed = random_.random() < 0.75
        leaves = random_.choice([None, None, 0, 1, 2, 4]) if streamed else None
        greedy = random_.random() < 0.5
        made.append(Visit(random_.randrange(200), random_.randint(1, 40), 0.0 if greedy else 1.0, streamed, leaves))
    return made


def pay(server: ServerProcess, visit: Visit) -> Any:
    """Make the visit; return the answer, or None for a client that left."""
    path, payload = pair.generate(
        pair.prompts()[visit.prompt], max_new_tokens=visit.tokens, temperature=visit.temperature
    )
    if not visit.streamed:
        return server.ask(path, payload)
    events = server.stream(path, payload)
    last = None
    for count, event in enumerate(events):
        if count == visit.leaves_after:
            events.close()
            return None
        last = event
    return last


def test_many_requests(dspark: ServerProcess, plain: PlainAnswers) -> None:
    scheduler = dspark.scheduler()
    answers, memory = [], []
    for part in (visits()[:EARLY], visits()[EARLY:]):
        answers += concurrently(lambda visit: pay(dspark, visit), part, WORKERS)
        load = dspark.wait_until_idle()
        assert load["num_used_tokens"] == 0
        memory.append(scheduler.memory_info().rss / 2**20)
    assert memory[1] - memory[0] < GROWTH_MIB, memory

    left = sum(answer is None for answer in answers)
    assert left > 150
    checked = 0
    for visit, answer in zip(visits(), answers, strict=True):
        if answer is not None and visit.temperature == 0:
            known = plain.greedy[f"prompt {visit.prompt}"]["output_ids"]
            assert answer["output_ids"] == known[: visit.tokens]
            checked += 1
    assert checked > 250

    dspark.flush_cache()
    assert dspark.load()["num_used_tokens"] == 0
    name, request = next(iter(arms.greedy_requests().items()))
    assert arms.essence(dspark.ask(*request)) == arms.essence(plain.greedy[name])


def test_a_client_that_does_not_read_holds_up_nobody(dspark: ServerProcess, plain: PlainAnswers) -> None:
    """Others are answered, its own request ends and frees its slots, and all of it is there when it reads at last."""
    path, payload = pair.generate(pair.prompts()[3], ignore_eos=True, max_new_tokens=300)
    payload |= {"return_logprob": True, "top_logprobs_num": 400}
    with SlowClient(dspark, path, payload) as slow:
        answers = arms.answer_all(dspark, dict(list(arms.greedy_requests().items())[:16]))
        for name, answer in answers.items():
            assert arms.essence(answer) == arms.essence(plain.greedy[name])
        assert dspark.wait_until_idle()["num_used_tokens"] == 0
        events = slow.read_all()
    # More than that: the server had to wait with the rest until it was read.
    assert slow.received > int(SEND_BUFFER.read_text().split()[-1])
    assert arms.essence(events[-1]) == arms.essence(dspark.ask(path, payload))
