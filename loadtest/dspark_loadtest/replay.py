"""Sends a trace: at its own times (open loop) or with a fixed number of clients (closed loop).

Deadlines are absolute, ``t0 + timestamp / speed``; a late one moves none of the others. Prompts are composed before
their deadline, never between it and the sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from dspark_loadtest import steady
from dspark_loadtest.client import NEVER, ChatClient
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.plan import Outcome, Plan, Session, leave_choice, sessions_of
from dspark_loadtest.progress import Progress
from dspark_loadtest.prompts import Composer
from dspark_loadtest.questions import Message, Questions
from dspark_loadtest.record import INTERRUPTED, LEFT, SKIPPED, UNANSWERED, RequestRecord
from dspark_loadtest.traces.request import Trace

# Time to get going before the first deadline.
_LEAD_S = 0.05


class Replay:
    """One run.

    Parameters
    ----------
    client : ChatClient
        Its clock is set to the run's.
    trace : Trace
    composer : Composer
    plan : Plan
    progress : Progress, optional
    clock : callable
        Seconds. Not the event loop's, which may be as coarse as a millisecond.

    Raises
    ------
    LoadtestError
        If the plan follows a clock that the trace does not have, or the trace asks for a category that there is not.
    """

    def __init__(
        self,
        client: ChatClient,
        trace: Trace,
        composer: Composer,
        plan: Plan,
        progress: Progress | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if plan.open_loop and not trace.timed:
            raise LoadtestError("the trace has no timestamps; replay it with --concurrency, or at a rate of your own")
        self.client, self.trace, self.plan = client, trace, plan
        self._questions = Questions(client, trace, composer)
        self.progress = progress
        self._clock = clock
        self.records: list[RequestRecord] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # Conversations of several turns, each with the records of those that were asked.
        self._talks: list[tuple[Session, list[RequestRecord]]] = []
        self._ending = asyncio.Event()
        self._interrupted = False
        self._error: BaseException | None = None
        self._sending_over: float | None = None
        # The latest time at which a request that is known of falls due.
        self._last_due = 0.0
        self._exhausted: float | None = None
        self._origin = 0.0

    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._origin

    def stop(self) -> None:
        """End the run: nothing more is sent, what is under way is interrupted, all of it is kept."""
        self._interrupted = True
        self._ending.set()

    async def run(self) -> Outcome:
        """Send everything, wait for the answers, and return what was measured."""
        loop = asyncio.get_running_loop()
        # Only the main thread of a Unix process may take signals; anywhere else Ctrl-C reaches whoever runs this.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGINT, self.stop)
        with _collecting_seldom():
            cpu = time.process_time()
            self._origin = self._clock() + _LEAD_S
            self.client.clock = self.now
            if self.progress:
                self.progress.begin(self.now)
            driver = asyncio.create_task(self._open() if self.plan.open_loop else self._closed())
            try:
                await self._until_over(driver)
            finally:
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(signal.SIGINT)
                if self.progress:
                    self.progress.end()
            cpu = time.process_time() - cpu
        for turns, asked in self._talks:
            self._skip(turns, asked)
        self.records.sort(key=lambda record: (record.due, record.index))
        ends = [record.end for record in self.records if record.end is not None]
        wall = max([self._sending_over or 0.0, *ends])
        return Outcome(self.records, wall, cpu, self._steady(wall), self._interrupted)

    async def _until_over(self, driver: asyncio.Task[None]) -> None:
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait({driver, ending}, return_when=asyncio.FIRST_COMPLETED)
        self._sending_over = self.now()
        if driver.done():
            # An error of ours, such as an unknown category, ends the run.
            driver.result()
            while self._tasks and not ending.done():
                # A later turn may be due, and is known of, long after the first turns were sent.
                timeout = max(self._sending_over, self._last_due) + self.plan.drain_s - self.now()
                if timeout <= 0:
                    break
                waits = {*self._tasks, ending}
                await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in (driver, ending, *self._tasks):
            task.cancel()
        await asyncio.gather(driver, ending, *self._tasks, return_exceptions=True)
        if self._error is not None:
            raise self._error
        if not self._interrupted:
            self._give_up()

    def _give_up(self) -> None:
        """Tell apart from Ctrl-C what the server had all the time for that the plan allows."""
        for record in self.records:
            if record.outcome == INTERRUPTED:
                record.outcome = UNANSWERED
                record.message = f"still open {self.plan.drain_s:g} s after the last request was due"

    async def _open(self) -> None:
        speed = 1e3 * self.plan.speed
        for started, turns in enumerate(sessions_of(self.trace.requests)):
            index, request = turns[0]
            due = (request.timestamp or 0.0) / speed
            if self._beyond(due, started):
                break
            history: list[Message] = []
            prepared = self._questions.body(index, request, history)
            await self._sleep_until(due)
            self._start(self._converse(turns, due, history, prepared))

    async def _closed(self) -> None:
        assert self.plan.concurrency is not None
        await self._sleep_until(0.0)
        supply = self._supply()
        workers = [asyncio.create_task(self._work(supply)) for _ in range(self.plan.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _supply(self) -> Iterator[Session]:
        sessions = sessions_of(self.trace.requests)
        started = passed = 0
        while sessions:
            for turns in sessions:
                if self._beyond(self.now(), started):
                    return
                # Indices go on in a second pass: who asks what is still told apart, and text that is shared stays so.
                yield [(index + passed * len(self.trace), request) for index, request in turns]
                started += 1
            if not self.plan.cycle:
                return
            passed += 1

    async def _work(self, supply: Iterator[Session]) -> None:
        for turns in supply:
            await self._converse(turns, None, [])
        self._exhausted = self.now() if self._exhausted is None else self._exhausted

    def _beyond(self, at: float, started: int) -> bool:
        plan = self.plan
        late = plan.duration_s is not None and at > plan.duration_s
        return late or (plan.max_requests is not None and started >= plan.max_requests)

    async def _converse(
        self, turns: Session, due: float | None, history: list[Message], prepared: bytes | None = None
    ) -> None:
        """Ask the turns of a session one after the other; ``due`` is None in a closed loop.

        ``history`` holds the messages of the first turn if its body is ``prepared``.
        """
        tokens = 0
        asked: list[RequestRecord] = []
        if len(turns) > 1:
            self._talks.append((turns, asked))
        for turn, (index, request) in enumerate(turns):
            waited = 0.0
            if turn and due is not None:
                ended = self.now()
                stamp = None if request.timestamp is None else request.timestamp / (1e3 * self.plan.speed)
                earliest = ended + (request.delay or 0.0) / (1e3 * self.plan.speed)
                due = earliest if stamp is None else max(stamp, earliest)
                waited = 0.0 if stamp is None else max(0.0, due - stamp)
                if self._beyond(due, 0):
                    return
            body = prepared if prepared is not None else self._questions.body(index, request, history, tokens)
            prepared = None
            if due is not None:
                self._last_due = max(self._last_due, due)
                await self._sleep_until(due)
            record = self._questions.record(index, request, turn, self.now() if due is None else due, waited)
            self.records.append(record)
            asked.append(record)
            await self._ask(body, record)
            if not record.ok:
                return
            tokens = record.prompt_tokens + record.completion_tokens
            history.append({"role": "assistant", "content": record.text})

    def _skip(self, turns: Session, asked: list[RequestRecord]) -> None:
        """Record the turns that a failed one kept from being asked: their users did not get them either."""
        if not asked or not asked[-1].failed:
            return
        due, speed = asked[-1].end or asked[-1].due, 1e3 * self.plan.speed
        for turn in range(len(asked), len(turns)):
            index, request = turns[turn]
            due += (request.delay or 0.0) / speed
            if self.plan.open_loop and request.timestamp is not None:
                due = max(due, request.timestamp / speed)
            if self._beyond(due, 0):
                return
            record = self._questions.record(index, request, turn, due)
            self.records.append(record)
            record.outcome, record.message = SKIPPED, "the turn before it failed"

    async def _ask(self, body: bytes, record: RequestRecord) -> None:
        leave = leave_choice(self.plan.leaving, self.plan.seed, record.index)
        if self.progress:
            self.progress.sent += 1
        try:
            async with asyncio.timeout(leave.get("seconds")):
                await self.client.ask(body, record, leave_after=leave.get("tokens", NEVER))
        except TimeoutError:
            if record.outcome == INTERRUPTED:
                record.outcome = LEFT
        finally:
            record.end = self.now() if record.end is None else record.end
            if self.progress:
                self.progress.answered(record)

    def _start(self, conversation: Any) -> None:
        task = asyncio.create_task(conversation)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let an error of ours in one conversation end the run at once, as it does in a closed loop."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._error is None:
            self._error = task.exception()
            self._ending.set()

    async def _sleep_until(self, due: float) -> None:
        wait = due - self.now()
        if wait > 0:
            await asyncio.sleep(wait)

    def _steady(self, wall: float) -> tuple[float, float]:
        if self.plan.open_loop:
            return steady.open_loop(self.records, wall)
        return steady.closed_loop(self.records, self.plan.concurrency or 1, self._exhausted, wall)


@contextlib.contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Keep the garbage collector from walking over everything that is loaded in the middle of a run."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
