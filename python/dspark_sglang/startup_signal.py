"""SIGTERM before the server serves: nobody is being answered yet, so that everything ends at once.

Without this nothing would happen in a container, where the server is process 1: of signals to it the kernel drops those
that have no handler, and the pod would hold its GPU until it is killed.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

import psutil

# For children whose end frees a device; they got SIGKILL.
_REAP_S = 10.0


def end_on_sigterm() -> None:
    """Make SIGTERM end every child process and this one with status 0, until another handler takes its place.

    `dspark_sglang.http.drain.Drain.attach` does so once requests can come.
    """
    owner = os.getpid()

    def end(signum: int, _: FrameType | None) -> None:
        if os.getpid() != owner:
            # A fork that has not become another program yet: the children are not its own.
            os._exit(128 + signum)
        os.write(2, b"SIGTERM before the server was ready: ending every process\n")
        children = psutil.Process().children(recursive=True)
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(children, timeout=_REAP_S)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
