"""``mock``: the scripted server, to try things against."""

from __future__ import annotations

import asyncio
import json
import signal
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from dspark_loadtest import options
from dspark_loadtest.mock.script import load_script
from dspark_loadtest.mock.server import MockServer


def add(actions: Any) -> None:
    """Declare the action."""
    parser = options.add_action(actions, "mock", "a server whose every answer is scripted: chunks, stalls, faults", run)
    parser.add_argument("--script", type=Path, metavar="JSON", help="fields of a script (see docs/loadtest.md)")
    parser.add_argument("--set", type=options.json_object, default={}, metavar="JSON", help="fields on top of it")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=options.whole, default=30001, help="0 takes a free one (default: 30001)")


def run(args: Namespace) -> int:
    """Answer until Ctrl-C or SIGTERM; returns 0."""
    server = MockServer(load_script(args.script, args.set), args.host, args.port)

    async def serve() -> None:
        await server.start()
        print(json.dumps({"url": server.url, **asdict(server.script)}), flush=True)
        over = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        await over.wait()
        await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
    return 0
