"""Two replicas of the fixture pair behind SGLang's gateway: kill one under load, restart it, drain the other.

    python tools/cluster_demo.py --out runs/cluster

Load comes from `dspark loadtest`, through the gateway, greedy and streamed, and its client never asks twice. First
every question is asked of one replica directly; what comes through the gateway later is compared with that, letter for
letter. The report says what clients saw and which promises held; the status is 1 if one did not.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import pair
from tests.support.cluster import Counts, Gateway, read_counts, start_together
from tests.support.cluster_load import (
    MODEL,
    Stroke,
    ask_all,
    by_replica,
    described,
    disagreements,
    lost,
    not_beginnings,
    read_when_counted,
    wrong_answers,
)
from tests.support.server import ServerProcess

REPLICAS = 2


@dataclass
class Demo:
    """The cluster, what is asked of it, and the report as it grows.

    Attributes
    ----------
    folder : Path
        For logs, step times and the report.
    questions : list of str
    tokens, clients : int
        Of each answer; asking at a time.
    say : callable
        Told what is going on.
    """

    folder: Path
    questions: list[str]
    tokens: int
    clients: int
    say: Callable[[str], None]
    expected: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=lambda: {"phases": {}, "broken": []})

    def __post_init__(self) -> None:
        self.replicas = [self._replica(number) for number in range(REPLICAS)]
        self.gateway = Gateway([replica.url for replica in self.replicas], self.folder / "gateway.log")

    def _replica(self, number: int) -> ServerProcess:
        own = ("--step-time-profile", str(self.folder / f"step-times-{number}.json"), "--served-model-name", MODEL)
        draft = ("--speculative-draft-model-path", str(pair.DRAFT), "--drain-timeout", "120")
        log = self.folder / f"replica-{number}.log"
        return ServerProcess([*pair.SERVER_FLAGS, *draft, *own], log, **pair.SERVER_ENVIRONMENT)

    def run(self) -> dict[str, Any]:
        """Go through all phases, end everything, and return the report."""
        self.say(f"starting {REPLICAS} replicas and the gateway; logs are in {self.folder}")
        start_together(self.replicas)
        try:
            self.gateway.start()
            self.expect(self.replicas[0])
            self.phase("steady")
            victim = self.kill()
            self.restart(victim)
            self.phase("restored")
            self.hold("the restarted replica answers again", bool(self.seen("restored")["answers"].get(victim.url)))
            for stayer in self.drain():
                self.hold("the other replica ends in order", stayer.stop() == 0)
        finally:
            self.gateway.stop()
            for replica in self.replicas:
                replica.kill()
        return self.report

    def at(self, url: str) -> ServerProcess:
        """Give the replica at a base URL."""
        return next(replica for replica in self.replicas if replica.url == url)

    def others(self, url: str | None) -> list[str]:
        """Give the base URLs of all replicas but one."""
        return [replica.url for replica in self.replicas if replica.url != url]

    def expect(self, replica: ServerProcess) -> None:
        """Ask every question of one replica, not through the gateway."""
        records = ask_all(replica.url, self.questions, self.tokens, self.clients)
        self.hold("all questions are answered when asked directly", not lost(records))
        self.expected = [record.text for record in records]

    def phase(self, name: str, stroke: Stroke | None = None) -> None:
        """Send the load, compare texts and counters."""
        before = read_counts(self.gateway, self.others(None))
        began = time.monotonic()
        records = ask_all(self.gateway.url, self.questions, self.tokens, self.clients, stroke)
        took = time.monotonic() - began
        left = self.others(stroke.replica if stroke else None)
        after = read_when_counted(lambda: read_counts(self.gateway, left), before, records)
        wrong, differ = wrong_answers(records, self.expected), disagreements(before, after, records)
        self.report["phases"][name] = {
            "seconds": round(took, 1),
            "requests": len(records),
            "answers": by_replica(records),
            "lost": described(records, self.expected),
            "gateway_retries": after.retries - before.retries,
            "tokens": tokens_of(before, after),
        }
        self.say(f"{name}: {len(records) - len(lost(records))} of {len(records)} complete in {took:.0f} s")
        self.hold(f"{name}: every complete answer is the expected one, letter for letter", not wrong, wrong)
        self.hold(f"{name}: clients, gateway and replicas count the same", not differ, differ)
        if stroke is None:
            self.hold(f"{name}: nothing is lost", not lost(records), described(records, self.expected))
            return
        beginnings = not_beginnings(records, self.expected)
        self.hold(f"{name}: a replica was hit while it streamed", stroke.replica is not None)
        self.hold(f"{name}: what lost streams had received is right, no token twice", not beginnings, beginnings)
        # The replica is named in the head of an answer: without one it had not begun, and nothing may be lost.
        elsewhere = [r.index for r in lost(records) if r.replica != stroke.replica]
        self.hold(f"{name}: only streams that had begun on that replica are lost", not elsewhere, elsewhere)

    def kill(self) -> ServerProcess:
        """Kill a replica, all its processes at once, while it streams; return it."""
        stroke = Stroke(lambda url: self.at(url).kill())
        self.phase("kill", stroke)
        seen = self.seen("kill")
        seen["under_way"] = stroke.struck
        self.hold("kill: streams were under way and were told", bool(seen["lost"]))
        assert stroke.replica is not None, "no replica ever had enough streams under way"
        self.gateway.wait_until_ready(set(self.others(stroke.replica)))
        self._killed_at = stroke.at_s
        return self.at(stroke.replica)

    def restart(self, replica: ServerProcess) -> None:
        """Start the killed replica again, under its old address."""
        replica.log_path = replica.log_path.with_name(replica.log_path.stem + "-again.log")
        began = time.monotonic()
        replica.start()
        ready = time.monotonic()
        self.gateway.wait_until_ready(set(self.others(None)))
        self.report["restart"] = {
            "start_s": round(ready - began, 1),
            "until_routed_s": round(time.monotonic() - ready, 1),
            "since_killed_s": round(time.monotonic() - self._killed_at, 1),
        }
        self.say(f"restarted: ready after {ready - began:.0f} s")

    def drain(self) -> list[ServerProcess]:
        """Ask a replica to end while it streams, as a rolling restart does; return those that stay."""
        stroke = Stroke(lambda url: self.at(url).signal(signal.SIGTERM))
        self.phase("drain", stroke)
        self.hold("drain: nothing is lost", not self.seen("drain")["lost"], self.seen("drain")["lost"])
        assert stroke.replica is not None, "no replica ever had enough streams under way"
        self.hold("drain: the replica ends with status 0", self.at(stroke.replica).wait_ended() == 0)
        return [self.at(url) for url in self.others(stroke.replica)]

    def seen(self, name: str) -> dict[str, Any]:
        """Give the report of a phase."""
        return dict(self.report["phases"])[name]

    def hold(self, promise: str, kept: bool, detail: object = None) -> None:
        """Note a promise, and what broke it."""
        self.report.setdefault("promises", []).append({"promise": promise, "kept": kept})
        if not kept:
            self.report["broken"].append(promise if not detail else f"{promise}: {detail}")
            self.say(f"BROKEN: {promise}: {detail}")


def tokens_of(before: Counts, after: Counts) -> dict[str, float]:
    """Give the tokens that each living replica has generated meanwhile."""
    name = "generation_tokens_total"
    return {url: served[name] - before.served[url][name] for url, served in after.served.items()}


def written(report: dict[str, Any]) -> str:
    """Write the report as Markdown."""
    lines = ["# Two replicas behind the gateway", ""]
    lines += ["| phase | requests | complete, by replica | lost | asked again by the gateway | seconds |"]
    lines += ["|---|---:|---|---:|---:|---:|"]
    for name, seen in report["phases"].items():
        answers = ", ".join(f"{url.rsplit(':', 1)[1]}: {count}" for url, count in seen["answers"].items())
        retries, took = f"{seen['gateway_retries']:.0f}", seen["seconds"]
        lines.append(f"| {name} | {seen['requests']} | {answers} | {len(seen['lost'])} | {retries} | {took} |")
    losses = [(name, one) for name, seen in report["phases"].items() for one in seen["lost"]]
    if losses:
        lines += ["", "| lost in | request | tokens received | how it ended | told |", "|---|---:|---:|---|---|"]
    for name, one in losses:
        tokens = f"{one['tokens_received']} of {one['tokens_asked']}"
        lines.append(f"| {name} | {one['request']} | {tokens} | `{one['ended_with']}` | {one['message']} |")
    if "restart" in report:
        again = report["restart"]
        lines += ["", f"The killed replica was ready {again['start_s']} s after its restart, and the gateway used it"]
        lines += [f"{again['until_routed_s']} s later, {again['since_killed_s']} s after it had been killed."]
    lines += ["", "| promise | |", "|---|---|"]
    lines += [f"| {one['promise']} | {'kept' if one['kept'] else 'BROKEN'} |" for one in report["promises"]]
    return "\n".join([*lines, ""])


def main() -> int:
    """Run it, print the report and write it down."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/cluster"), help="folder for logs and report")
    parser.add_argument("--requests", type=int, default=32, help="questions of each phase")
    parser.add_argument("--tokens", type=int, default=300, help="of each answer")
    parser.add_argument("--clients", type=int, default=12, help="asking at a time")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    # Servers have sessions of their own: whoever ends this ends them through it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    say = lambda line: print(f"cluster-demo: {line}", file=sys.stderr, flush=True)  # noqa: E731
    demo = Demo(args.out.resolve(), pair.questions(args.requests), args.tokens, args.clients, say)
    report = demo.run()
    (args.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (args.out / "report.md").write_text(written(report))
    print(written(report))
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
