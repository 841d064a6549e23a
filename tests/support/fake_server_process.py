"""Run as a process: answers every GET with 200, and has a child that SIGTERM does not end.

Writes the ids of both processes to the file that the first argument names, before it listens.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('set', flush=True); signal.pause()"


class Handler(BaseHTTPRequestHandler):
    """Says yes."""

    def do_GET(self) -> None:
        """Answer 200."""
        self.send_response(200)
        self.end_headers()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("pids", type=Path)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    args.pids.write_text(f"{os.getpid()} {child.pid}")
    sys.stdout.write(f"cores {sorted(os.sched_getaffinity(0))} threads {os.environ['OMP_NUM_THREADS']}\n")
    sys.stdout.flush()
    HTTPServer((args.host, args.port), Handler).serve_forever()
