"""Stopping without breaking off: on SIGTERM nothing new is let in, what runs may end, and what has not ended is told.

SGLang stops its processes once no request is left, and waits for that without a bound. This decides when none is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from dspark_sglang.http import errors
from dspark_sglang.http.context import RequestContext

logger = logging.getLogger(__name__)

_POLL_S = 0.05
# Of the deadline, what stopping the processes and telling the clients may take.
_RESERVE_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drain:
    """What is under way, and its end.

    Parameters
    ----------
    timeout_s : float
        From the signal to the end of the process, at most.
    end_process : callable
        Ends every child process and this one with the exit status that it is given.
    """

    def __init__(self, timeout_s: float, end_process: Callable[[int], None]) -> None:
        self.timeout_s = timeout_s
        self.draining = False
        self._end_process = end_process
        self._manager: Any = None
        self._requests: dict[int, tuple[RequestContext, asyncio.Task[Any]]] = {}
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def enter(self, context: RequestContext, task: asyncio.Task[Any]) -> None:
        """Count a request, which ``task`` answers."""
        self._requests[id(context)] = (context, task)

    def leave(self, context: RequestContext) -> None:
        """Forget a request whose last byte was handed over; harmless when it was forgotten already."""
        self._requests.pop(id(context), None)

    def attach(self, manager: Any) -> None:
        """Take over the signals in the running event loop.

        Parameters
        ----------
        manager : TokenizerManager
            SGLang's; its ``rid_to_state`` holds what the scheduler has not finished.
        """
        self._manager = manager
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.begin, number)
        drain = self

        class Signals(manager.signal_handler_class):  # type: ignore[misc]
            def sigterm_handler(self, signum: Any = None, frame: Any = None) -> None:
                drain.begin(signal.SIGTERM)

        # SGLang sets its own handler of SIGTERM at its first request.
        manager.signal_handler_class = Signals

    def begin(self, signum: int) -> None:
        """Start draining; called once, by the first signal, since the next one ends the process."""
        if self.draining:
            return
        self.draining = True
        logger.warning(
            "%s: no new requests; %d are running and have %.0f seconds (a second signal ends at once)",
            signal.Signals(signum).name,
            len(self._requests),
            self._time_for_requests(),
        )
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            # Not through the loop: SGLang holds it up while it waits for its processes.
            signal.signal(number, self._end_at_once)
        last_resort = threading.Timer(self.timeout_s, self._give_up)
        last_resort.daemon = True
        last_resort.start()
        # From now on SGLang's own /health and /ready say 503.
        self._manager.gracefully_exit = True
        # Makes its watchdog, if no request has done so yet.
        self._manager.auto_create_handle_loop()
        self._task = loop.create_task(self._run())

    async def over(self) -> None:
        """Wait until no request is left."""
        await self._over.wait()

    async def _run(self) -> None:
        try:
            if not await self._idle_within(self._time_for_requests()):
                self._cut()
                await self._idle_within((self.timeout_s - self._time_for_requests()) / 2)
            if self._manager.rid_to_state:
                logger.error("%d requests did not end; stopping all the same", len(self._manager.rid_to_state))
                # SGLang's own switch for not waiting any longer.
                os.environ["SGL_FORCE_SHUTDOWN"] = "1"
        finally:
            self._over.set()

    def _time_for_requests(self) -> float:
        return self.timeout_s - min(_RESERVE_S, self.timeout_s / 2)

    async def _idle_within(self, seconds: float) -> bool:
        """Wait until nothing is under way, neither here nor in the scheduler; whether that came in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._requests or self._manager.rid_to_state:
            if loop.time() >= deadline:
                return False
            # SGLang's table of requests tells nobody when it is empty.
            await asyncio.sleep(_POLL_S)
        return True

    def _cut(self) -> None:
        logger.warning("drain deadline: ending %d requests, whose clients are told", len(self._requests))
        for context, task in list(self._requests.values()):
            context.cut = errors.draining()
            task.cancel()
        # Those without a connection, too.
        self._manager.abort_request(abort_all=True)

    def _give_up(self) -> None:
        logger.error("not stopped within %.0f seconds; ending every process", self.timeout_s)
        self._end_process(0)

    def _end_at_once(self, signum: int, _: FrameType | None) -> None:
        self._end_process(128 + signum)
