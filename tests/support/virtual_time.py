"""An event loop whose clock jumps to the next timer when nothing is left to do: seconds of traffic in no time, exactly.

Client and server run in the same loop and talk over real sockets of the loopback interface; what is sent has arrived by
the time the loop looks for it, so that time never passes while data is under way.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from dspark_loadtest.client import AskSettings, ChatClient
from dspark_loadtest.mock.script import Script
from dspark_loadtest.mock.server import MockServer
from dspark_loadtest.plan import Outcome, Plan
from dspark_loadtest.prompts import Composer, Library
from dspark_loadtest.replay import Replay
from dspark_loadtest.traces.request import Trace

Result = TypeVar("Result")
# Real seconds that the kernel gets to deliver what was sent.
_DELIVERY_S = 0.001
LIBRARY = Library([None])


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits for time to pass: advances the clock instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready; if nothing is, move the clock by ``timeout``."""
        found = super().select(0) or super().select(_DELIVERY_S if timeout != 0 else 0)
        if not found and timeout:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; its clock begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._jumping.now


def run(main: Callable[[VirtualLoop], Awaitable[Result]]) -> Result:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)

        async def whole() -> Result:
            return await main(loop)

        return runner.run(whole())


def replay(
    script: Script, trace: Trace, plan: Plan, settings: AskSettings | None = None, *, stop_at: float | None = None
) -> tuple[Outcome, MockServer]:
    """Replay a trace against a mock server that keeps the bodies it is sent; Ctrl-C comes at ``stop_at``."""

    async def main(loop: VirtualLoop) -> tuple[Outcome, MockServer]:
        server = MockServer(script)
        server.keep_bodies = True
        await server.start()
        client = ChatClient(server.url, "mock", settings or AskSettings(), loop.time)
        try:
            composer = Composer(LIBRARY, trace.block_size)
            replay = Replay(client, trace, composer, plan, clock=loop.time)
            if stop_at is not None:
                loop.call_later(stop_at, replay.stop)
            return await replay.run(), server
        finally:
            await client.close()
            await server.stop()

    return run(main)
