"""``dspark bench metrics``: what recording a decode step costs the scheduler, without a server.

Each step is recorded as the worker does it: launched, timed, its verdict, its confidences, and the stream that
settles it; one request in a hundred ends and another takes its place. The rest is work of the exporter's thread, which
runs twice a second.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from dspark_sglang.bench import machine, report
from dspark_sglang.metrics.definitions import DEFAULT_SLA
from dspark_sglang.metrics.exporter import Exporter
from dspark_sglang.metrics.fold import Fold
from dspark_sglang.metrics.phases import PhaseClock
from dspark_sglang.metrics.recorder import Recorder
from dspark_sglang.metrics.sheet import Sheet
from dspark_sglang.step import Step
from sgl_dspark.planner.step import Decision, StepCosts

REQUESTS = (1, 16, 64, 256)
GAMMA, STEPS, STEPS_PER_PASS, SEED = 7, 2000, 50, 0


class Answer:
    """A request as the recorder sees it: an answer that grows, in a slot."""

    def __init__(self, slot: int) -> None:
        self.rid, self.kv = f"r{id(self)}", SimpleNamespace(req_pool_idx=slot)
        self.output_ids: range = range(1)
        self.finished_len: int | None = None
        self.finished_reason: Any = None

    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finished_reason is not None


class Load:
    """A recorder and requests that it counts, step after step.

    Parameters
    ----------
    requests : int
    """

    def __init__(self, requests: int, seed: int = SEED) -> None:
        self.recorder = Recorder(requests + 1, PhaseClock())
        self.fold = Fold(self.recorder, Sheet(GAMMA, DEFAULT_SLA))
        self.answers = [Answer(i + 1) for i in range(requests)]
        self.recorder.streamed(self.answers)
        self._random = np.random.default_rng(seed)
        self._slots = np.arange(1, requests + 1)
        times = np.linspace(0.01, 0.02, requests * GAMMA + 1)
        self._costs = StepCosts(0.01, times, tiers=np.arange(8, 8 * requests + 16, 8))
        self._number = 0

    def run(self) -> float:
        """Record one step and return the seconds that it took."""
        count, random = len(self.answers), self._random
        lens = random.integers(0, GAMMA + 1, count)
        accepted = np.minimum(random.integers(0, GAMMA + 1, count), lens)
        logits = random.standard_normal((count, GAMMA)).astype(np.float32)
        kinds, alive = np.zeros(count, np.int64), np.ones(count, bool)
        self._number += 1
        decision = Decision(self._number, True, int(lens.sum()), None, 2.0 * count)
        step = Step(
            self._number, list(self.answers), self._slots, self._slots, kinds, lens, 0, decision, self._costs, 0.0
        )
        step.lens, step.expected = lens, np.ones(count, np.float32)
        step.marks_s = [0.001, 0.004, 0.005, 0.01]
        for answer, more in zip(self.answers, accepted.tolist(), strict=True):
            answer.output_ids = range(len(answer.output_ids) + more + 1)
        over = random.choice(count, count // 100, replace=False).tolist()
        for i in over:
            self.answers[i].finished_len = len(self.answers[i].output_ids) - 1
            self.answers[i].finished_reason = SimpleNamespace(to_json=lambda: {"type": "stop"})
        recorder, requests = self.recorder, list(self.answers)
        began = time.perf_counter()
        recorder.decided(step)
        recorder.timed(step, 0.01, 0.012)
        recorder.verdict(step, accepted, alive)
        recorder.rounds(logits, lens, accepted, kinds)
        for i in over:
            recorder.finished(requests[i].rid)
        recorder.streamed(requests)
        seconds = time.perf_counter() - began
        for i in over:
            self.answers[i] = Answer(i + 1)
        if over:
            recorder.streamed([self.answers[i] for i in over])
        return seconds


def measure(requests: int, *, steps: int = STEPS) -> dict[str, float]:
    """Measure at one batch size.

    Returns
    -------
    dict
        ``requests``; ``step_us``, ``step_p95_us``: a step on the scheduler's thread; ``counting_us``: what a step adds
        to a pass of the exporter's thread; ``pass_us``: the rest of a pass, whatever the number of steps.
    """
    from prometheus_client import CollectorRegistry

    load = Load(requests)
    exporter = Exporter(load.fold, "bench", lambda sheet: {}, CollectorRegistry())
    took: list[float] = []
    folds: list[float] = []
    passes: list[float] = []
    for _ in range(1 + steps // STEPS_PER_PASS):
        took += [load.run() for _ in range(STEPS_PER_PASS)]
        began = time.perf_counter()
        load.fold.fold()
        folded = time.perf_counter()
        exporter.export()
        folds.append(folded - began)
        passes.append(time.perf_counter() - folded)
    return {
        "requests": requests,
        "step_us": 1e6 * median(took[STEPS_PER_PASS:]),
        "step_p95_us": 1e6 * float(np.quantile(took[STEPS_PER_PASS:], 0.95)),
        "counting_us": 1e6 * median(folds[1:]) / STEPS_PER_PASS,
        "pass_us": 1e6 * median(passes[1:]),
    }


def run(args: Namespace) -> int:
    """Measure at each number of requests, print a table, write ``--json``."""
    rows = [measure(requests) for requests in REQUESTS]
    names = ("requests", "step_us", "step_p95_us", "counting_us", "pass_us")
    table = [["requests", "step us", "p95 us", "counting us", "pass us"]]
    table += [[f"{row[name]:.0f}" if name == "requests" else f"{row[name]:.1f}" for name in names] for row in rows]
    layout = report.markdown if args.markdown else report.aligned
    notes = (
        f"{machine.describe()['cpu']}, gamma {GAMMA}, {STEPS} steps; one request in a hundred ends in each step.",
        "step: on the scheduler's thread; counting: what it adds to the exporter's thread; pass: each half second.",
    )
    sys.stdout.write("\n".join(["", layout(table), "", *notes, ""]))
    if args.json is not None:
        args.json.write_text(
            json.dumps({"machine": machine.describe(), "gamma": GAMMA, "metrics": rows}, indent=1) + "\n"
        )
    return 0
