"""Short questions before a run, so that nothing of what is measured is a first time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dspark_loadtest.client import ChatClient
from dspark_loadtest.prompts import Composer
from dspark_loadtest.record import RequestRecord
from dspark_loadtest.traces.request import TraceRequest


async def warm_up(client: ChatClient, composer: Composer, requests: Sequence[TraceRequest], concurrency: int) -> int:
    """Ask; none of it is measured. Return how many were answered."""
    waiting = iter(list(enumerate(requests)))
    answered = 0

    async def work() -> None:
        nonlocal answered
        for index, request in waiting:
            content = composer.compose(request, -1 - index)
            body = client.body([{"role": "user", "content": content}], request.output_length)
            record = RequestRecord(index)
            await client.ask(body, record)
            answered += record.ok

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return answered
