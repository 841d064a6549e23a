"""Exit 0 if the server in this container takes requests, 1 otherwise; standard library only.

Asks ``/ready``, which costs nothing, rather than ``/health``, which generates a token. The port is that of the process
with number 1, or ``PORT``, or 30000.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

TIMEOUT_S = 5.0


def port(arguments: list[str]) -> str:
    """Return the last ``--port`` of a command line, else ``PORT``, else the server's default."""
    found = os.environ.get("PORT") or "30000"
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--port" and following:
            found = following
        elif argument.startswith("--port="):
            found = argument.partition("=")[2]
    return found


def main() -> int:
    """Ask once."""
    try:
        command_line = Path("/proc/1/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        command_line = []
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port(command_line)}/ready", timeout=TIMEOUT_S) as response:
            return int(response.status != 200)
    except OSError as error:
        sys.stderr.write(f"healthcheck: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
