"""Serve mixed traffic for a long time with faults on, and fail if anything leaks, hangs or differs.

    python tools/soak.py --minutes 60

The fixture pair is served twice: first the target alone, which answers every greedy request of the mix; then DSpark,
with the faults of tests/support/faults.py, under clients that stream, leave, read slowly, ask for several answers,
constrain and penalise them, and send nonsense. Every greedy answer is compared with its twin. Memory, threads and file
descriptors of every process, and KV slots, are read at quiet moments. The report is JSON on standard output; the status
is 1 if anything is wrong.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import arms, pair
from tests.support.server import ServerProcess
from tests.support.slow_client import SlowClient

WORKERS = 24
# Of each process, read at quiet moments: growth from the first, after the caches are warm, to the last.
MOST_GROWTH = {"memory_mib": 24, "threads": 4, "files": 8}
FAULTS = {"SGL_DSPARK_TEST_HOOK": "tests.support.faults:inject"}
NONSENSE: tuple[dict[str, Any], ...] = (
    {"messages": []},
    {"model": "default", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1},
    {"model": "default", "messages": "x", "temperature": "hot"},
    {"model": "default", "messages": [{"role": "user", "content": "x"}], "regex": "(", "max_tokens": 4},
    {"model": "default", "messages": [{"role": "user", "content": "x " * 4000}]},
    {"messages": [{"role": "user", "content": "x"}], "min_tokens": 1, "n": 0},
    {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 60000},
)


@dataclass
class Tally:
    """What happened; one for all clients."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, problem: str | None = None) -> None:
        """Count a visit, and what was wrong with it."""
        with self.lock:
            self.counts[kind] += 1
            if problem is not None:
                self.wrong.append(f"{kind}: {problem}")


def twins(folder: Path) -> dict[str, Any]:
    """Let the target alone answer every greedy request of the mix."""
    server = ServerProcess(
        ["--plain", "--disable-overlap-schedule", *pair.SERVER_FLAGS], folder / "plain.log", **pair.SERVER_ENVIRONMENT
    )
    server.start()
    try:
        adjusted = {
            n: r for n, r in arms.adjusted_requests().items() if not arms.is_only_penalised(n.rsplit(" ", 1)[0])
        }
        found = arms.answer_all(server, {**arms.greedy_requests(), **adjusted})
        server.stop()
    finally:
        server.kill()
    return {name: arms.essence(answer) for name, answer in found.items()}


class Mix:
    """The clients' behaviour, drawn anew at each visit."""

    def __init__(self, server: ServerProcess, known: dict[str, Any], tally: Tally) -> None:
        self._server, self._known, self._tally = server, known, tally
        self._requests = {n: r for n, r in {**arms.greedy_requests(), **arms.adjusted_requests()}.items() if n in known}
        self._names = list(self._requests)
        self._visits: list[tuple[float, str, Callable[[random.Random], str | None]]] = [
            (0.40, "greedy", self.greedy),
            (0.20, "streamed", self.streamed),
            (0.13, "left", self.leave),
            (0.02, "slow", self.slow),
            (0.10, "sampled", self.sampled),
            (0.05, "several", self.several),
            (0.10, "nonsense", self.nonsense),
        ]

    def visit(self, seed: int) -> None:
        """Make one visit; anything that a client must not see is noted."""
        chance = random.Random(seed)
        weights = [weight for weight, _, _ in self._visits]
        _, kind, behave = chance.choices(self._visits, weights)[0]
        try:
            problem = behave(chance)
        except Exception as error:  # noqa: BLE001 - whatever a client can meet is what is looked for
            problem = f"{type(error).__name__}: {error}"
        self._tally.note(kind, problem)

    def greedy(self, chance: random.Random) -> str | None:
        """Ask one, whole."""
        name = chance.choice(self._names)
        same = arms.essence(self._server.ask(*self._requests[name])) == self._known[name]
        return None if same else f"{name} differs from its twin"

    def streamed(self, chance: random.Random) -> str | None:
        """Ask one, streamed."""
        name = chance.choice(self._names)
        last: Any = None
        for last in self._server.stream(*self._requests[name]):  # noqa: B007 - the last one holds the answer
            pass
        return None if last is not None and arms.essence(last) == self._known[name] else f"{name} differs, streamed"

    def leave(self, chance: random.Random) -> None:
        """Ask one and go away."""
        events = self._server.stream(*self._requests[chance.choice(self._names)])
        for _ in range(chance.randint(0, 4)):
            next(events, None)
        events.close()

    def slow(self, chance: random.Random) -> str | None:
        """Ask one, streamed, and read nothing of it until another has been answered."""
        name = chance.choice(self._names)
        with SlowClient(self._server, *self._requests[name]) as client:
            problem = self.greedy(chance)
            last = client.read_all()[-1]
        return problem or (None if arms.essence(last) == self._known[name] else f"{name} differs, read slowly")

    def sampled(self, chance: random.Random) -> str | None:
        """Ask at some temperature, with settings."""
        settings = chance.choice([{}, {"top_p": 0.9}, {"presence_penalty": 0.4}, {"regex": "[a-z ]{1,80}"}])
        path, payload = pair.generate(chance.choice(pair.prompts()), temperature=chance.uniform(0.3, 1.3), **settings)
        answer = self._server.ask(path, payload)["meta_info"]
        return None if 0 < answer["completion_tokens"] <= 64 else f"{answer['completion_tokens']} tokens"

    def several(self, chance: random.Random) -> str | None:
        """Ask for several answers."""
        answers = self._server.ask(*pair.generate(chance.choice(pair.prompts()), temperature=0.8, n=3))
        return None if len(answers) == 3 else f"{len(answers)} answers of 3"

    def nonsense(self, chance: random.Random) -> str | None:
        """Send what must be refused."""
        status = self._server.post("/v1/chat/completions", chance.choice(NONSENSE)).status_code
        return None if 400 <= status < 500 else f"status {status}"


def look(server: ServerProcess) -> dict[str, Any]:
    """Read what must not grow, when nothing runs and the prefix cache is empty: of each process, by its role."""
    server.wait_until_idle()
    server.flush_cache()
    return {
        "slots": server.load()["num_used_tokens"],
        "processes": {
            role: {
                "memory_mib": process.memory_info().rss / 2**20,
                "threads": process.num_threads(),
                "files": process.num_fds(),
            }
            for role, process in server.processes().items()
        },
    }


def growth(first: dict[str, Any], last: dict[str, Any]) -> list[str]:
    """Say what grew from one look to another by more than it may; a process that came or went is said too."""
    before, after = first["processes"], last["processes"]
    found = [f"process {role} is in one look only" for role in sorted(before.keys() ^ after.keys())]
    for role in before.keys() & after.keys():
        for name, most in MOST_GROWTH.items():
            old, new = before[role][name], after[role][name]
            if new - old > most:
                found.append(f"{name} of {role} grew from {old:.0f} to {new:.0f}")
    return found


def soak(folder: Path, minutes: float, looks: int) -> dict[str, Any]:
    """Run it; returns the report."""
    known, tally, read = twins(folder), Tally(), []
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]
    server = ServerProcess(flags, folder / "dspark.log", **pair.SERVER_ENVIRONMENT, **FAULTS)
    server.start()
    try:
        mix, seed = Mix(server, known, tally), 0
        for part in range(looks + 1):
            # The first part only warms up.
            ends = time.monotonic() + 60 * minutes / (looks + 1)
            with ThreadPoolExecutor(WORKERS) as pool:
                while time.monotonic() < ends:
                    list(pool.map(mix.visit, range(seed, seed + 10 * WORKERS)))
                    seed += 10 * WORKERS
            read.append(look(server))
            print(f"soak: part {part}: {sum(tally.counts.values())} visits, {read[-1]}", file=sys.stderr, flush=True)
        status = server.stop()
    finally:
        server.kill()
    if status or "Traceback" in server.log():
        tally.wrong.append(f"the server ended with status {status}, or its log holds a traceback: {server.log_path}")
    tally.wrong += growth(read[0], read[-1])
    if any(one["slots"] for one in read):
        tally.wrong.append("KV slots were still in use when nothing ran")
    return {"minutes": minutes, "visits": dict(tally.counts), "looks": read, "wrong": tally.wrong}


def main() -> int:
    """Soak, and print the report."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--looks", type=int, default=4, help="quiet moments after the first")
    parser.add_argument("--logs", type=Path, default=None, help="folder for the servers' logs")
    args = parser.parse_args()
    folder = args.logs or Path(tempfile.mkdtemp(prefix="dspark-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    report = soak(folder, args.minutes, args.looks)
    print(json.dumps(report, indent=2))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
