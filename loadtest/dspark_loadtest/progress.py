"""A line that moves while a run goes on: requests, errors, tokens a second just now."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

from dspark_loadtest.record import RequestRecord

_EVERY_S = 0.5
# Where nobody watches, a line this often.
_EVERY_S_IN_LOGS = 15.0


class Progress:
    """Counts, and shows the counts now and then.

    Parameters
    ----------
    total : int or None
        Requests that there will be.
    stream : TextIO
        A bar on a terminal, lines elsewhere.
    """

    def __init__(self, total: int | None, stream: TextIO = sys.stderr) -> None:
        self.total, self.stream = total, stream
        self.sent = self.done = self.failed = self.tokens = 0
        self._task: asyncio.Task[None] | None = None
        self._bar: tqdm[None] | None = None

    def begin(self, clock: Callable[[], float]) -> None:
        """Show from now on, in the running loop."""
        if self.stream.isatty():
            self._bar = tqdm(total=self.total, file=self.stream, unit="req", dynamic_ncols=True, leave=False)
        self._task = asyncio.create_task(self._show(clock))

    def end(self) -> None:
        """Show no more."""
        if self._task is not None:
            self._task.cancel()
        if self._bar is not None:
            self._bar.close()

    def add_tokens(self, count: int) -> None:
        """Count the tokens of a chunk."""
        self.tokens += count

    def answered(self, record: RequestRecord) -> None:
        """Count a request that has ended, however it did."""
        self.done += 1
        self.failed += record.failed

    async def _show(self, clock: Callable[[], float]) -> None:
        every = _EVERY_S if self._bar is not None else _EVERY_S_IN_LOGS
        at, tokens = clock(), 0
        while True:
            await asyncio.sleep(every)
            now = clock()
            rate = (self.tokens - tokens) / max(now - at, 1e-9)
            at, tokens = now, self.tokens
            self._line(now, rate)

    def _line(self, now: float, rate: float) -> None:
        open_ = self.sent - self.done
        if self._bar is not None:
            self._bar.n = self.done
            self._bar.set_postfix_str(f"{rate:.0f} tok/s, {open_} open, {self.failed} failed", refresh=True)
        else:
            of = f" of {self.total}" if self.total else ""
            self.stream.write(
                f"{now:6.0f} s: {self.done}{of} answered, {open_} open, {self.failed} failed, {rate:.0f} tok/s\n"
            )
            self.stream.flush()
