"""Ask a server one question from end to end: ``python3 smoke.py URL [--plain]``. Standard library only.

Checks that it is ready, answers with usage, and, unless ``--plain``, counts DSpark's steps. The API key, if there is
one, is read from ``DSPARK_API_KEY``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_S = 120.0


def main(arguments: list[str]) -> int:
    """Print what was checked; 1 with one sentence on standard error at the first failure."""
    plain = "--plain" in arguments
    urls = [argument for argument in arguments if argument != "--plain"]
    if len(urls) != 1:
        sys.stderr.write("usage: smoke.py URL [--plain]\n")
        return 2
    try:
        check(urls[0].rstrip("/"), plain=plain)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"smoke: error: {error}\n")
        return 1
    return 0


def check(url: str, *, plain: bool) -> None:
    """Raise an error that says what is wrong with the server at ``url``."""
    ask(f"{url}/ready")
    say("ready")
    model = json.loads(ask(f"{url}/v1/models"))["data"][0]["id"]
    question = {"model": model, "messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8}
    answer = json.loads(ask(f"{url}/v1/chat/completions", question))
    tokens = answer["usage"]["completion_tokens"]
    if not 1 <= tokens <= question["max_tokens"]:
        raise ValueError(f"the answer has {tokens} tokens where 1 to {question['max_tokens']} were asked for")
    say(f"{model} answered {tokens} tokens")
    if not plain:
        steps = total(ask(f"{url}/metrics"), "dspark_steps_total")
        if steps == 0:
            raise ValueError("dspark_steps_total counts no step: DSpark is not in place, or metrics are off")
        say(f"{steps:.0f} steps by DSpark")


def ask(url: str, body: dict[str, Any] | None = None) -> str:
    """Return the body of an answer with status 200."""
    headers = {"Content-Type": "application/json"}
    key = os.environ.get("DSPARK_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answered {error.code}: {error.read().decode(errors='replace')[:500]}") from error
    except urllib.error.URLError as error:
        raise ValueError(f"{url} does not answer: {error.reason}") from error
    except TimeoutError as error:
        raise ValueError(f"{url} accepted the request and has sent nothing for {TIMEOUT_S} s") from error


def total(metrics: str, name: str) -> float:
    """Sum the series of a counter in Prometheus' text format; 0 if there is none."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE))


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"smoke: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
