"""``dspark bench planner``: the search for the verify budget, ours against SGLang's, on the same numbers.

Both run in one process and get the same survival and the same cost table: a constant, a term of the requests and a term
of the verify tokens, linear between knots. Calls alternate, on matrices that change, so that neither finds its data
warmer than the other does. ``search`` is `sgl_dspark.planner.capacity.choose_budget` on step times that are at hand;
``ours`` also makes them from the step-time model, as SGLang's function makes them from its table.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from dspark_sglang.bench import BenchError, machine, report
from sgl_dspark.planner.capacity import choose_budget
from sgl_dspark.sps.curve import Curve
from sgl_dspark.sps.model import StepTimeModel

REQUESTS = (1, 16, 64, 512)
GAMMA = 7
REPEATS, WARM_UP, MATRICES = 400, 40, 16
SEED = 0
BASE_S = 1e-3
# Knots of verify tokens and of requests, with their seconds: flat while weights are read, then linear, as on a GPU.
TOKENS, TOKEN_S = [1, 64, 256, 512, 1024, 2048, 4096], [8e-3, 8.4e-3, 1.0e-2, 1.4e-2, 2.3e-2, 4.2e-2, 8.1e-2]
ROWS, ROW_S = [1, 16, 64, 512], [1.0e-3, 1.2e-3, 1.7e-3, 6.0e-3]

Matrices = Sequence[Any]
Timed = Callable[[int], int]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one side over its calls."""

    median_us: float
    p95_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Summarise at least one call."""
        return cls(1e6 * median(seconds), 1e6 * float(np.quantile(np.array(seconds), 0.95)))


def survival_matrices(requests: int, count: int, seed: int = SEED) -> list[Any]:
    """Draw ``count`` matrices of survival, float32 [R, gamma]: easy and hard requests mixed."""
    random = np.random.default_rng(seed)
    ease = random.uniform(0.3, 1.0, (count, requests, 1))
    confidence = random.beta(6 * ease, 6 * (1.05 - ease), (count, requests, GAMMA))
    return list(np.cumprod(confidence, axis=2).astype(np.float32))


def sglang_side(survivals: Matrices) -> Timed:
    """Return SGLang's search on matrix i.

    Raises
    ------
    BenchError
        If the installed SGLang has no such function.
    """
    # Upstream: 0.5.23. Private; used here only to compare with, so it may go when SGLang's moves.
    try:
        import torch
        from sglang.srt.speculative.dspark_components.dspark_planner import (
            DSparkScheduleConfig,
            compute_verify_token_budget,
        )
        from sglang.srt.speculative.dspark_components.dspark_sps import SpsAdditiveCostTable
    except ImportError as error:
        raise BenchError(f"the installed SGLang has no DSpark planner to compare with: {error}") from error
    table = SpsAdditiveCostTable(
        bias_seconds=BASE_S,
        bs_probes=ROWS,
        alpha_seconds=ROW_S,
        m_probes=TOKENS,
        theta_seconds=TOKEN_S,
    )
    config = DSparkScheduleConfig(gamma=GAMMA)
    tensors = [torch.from_numpy(survival) for survival in survivals]

    def search(index: int) -> int:
        tensor = tensors[index]
        return int(compute_verify_token_budget(history_survival_probs=tensor, sps_table=table, cfg=config).budget)

    return search


def our_sides(survivals: Matrices) -> tuple[Timed, Timed]:
    """Return our search on matrix i: on step times at hand, and with their making."""
    requests = len(survivals[0])
    model = StepTimeModel(Curve(TOKENS, TOKEN_S), Curve(ROWS, ROW_S), host_s=BASE_S)
    times = model.step_times(requests, GAMMA, 0)
    return (
        lambda index: choose_budget(survivals[index], times).budget,
        lambda index: choose_budget(survivals[index], model.step_times(requests, GAMMA, 0)).budget,
    )


def alternate(sides: Sequence[Timed], count: int, *, repeats: int, warm_up: int) -> list[Timing]:
    """Time every side on every call in turn, the first to go changing, and compare what they find.

    Parameters
    ----------
    sides : sequence of callable
        Each takes the number of a matrix and returns a budget.
    count : int
        Matrices.
    repeats, warm_up : int
        Timed and untimed calls of each side.

    Raises
    ------
    BenchError
        If two sides find different budgets.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    gc.collect()
    gc.disable()
    try:
        for call in range(-warm_up, repeats):
            budgets = {}
            for turn in range(len(sides)):
                side = (call + turn) % len(sides)
                start = time.perf_counter()
                budgets[side] = sides[side](call % count)
                if call >= 0:
                    seconds[side].append(time.perf_counter() - start)
            if len(set(budgets.values())) > 1:
                raise BenchError(f"the planners disagree on matrix {call % count}: budgets {budgets}")
    finally:
        gc.enable()
    return [Timing.of(found) for found in seconds]


def measure(requests: int, *, repeats: int = REPEATS, warm_up: int = WARM_UP) -> dict[str, Any]:
    """Time all sides at one batch size.

    Returns
    -------
    dict
        ``requests``, ``gamma``, ``mean_budget``; ``search``, ``ours`` and ``sglang`` with ``median_us`` and ``p95_us``;
        ``ratio``: SGLang's median over that of ``ours``.
    """
    survivals = survival_matrices(requests, MATRICES)
    search, ours = our_sides(survivals)
    names = ("search", "ours", "sglang")
    timings = alternate((search, ours, sglang_side(survivals)), MATRICES, repeats=repeats, warm_up=warm_up)
    found = dict(zip(names, timings, strict=True))
    return {
        "requests": requests,
        "gamma": GAMMA,
        "mean_budget": float(np.mean([search(i) for i in range(MATRICES)])),
        **{name: vars(timing) for name, timing in found.items()},
        "ratio": found["sglang"].median_us / found["ours"].median_us,
    }


def rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Lay results out, heading first."""
    table = [["requests", "arm", "budget", "median us", "p95 us", "x SGLang"]]
    for found in results:
        first, budget = str(found["requests"]), f"{found['mean_budget']:.1f}"
        for name, label in (("search", "search alone"), ("ours", "ours"), ("sglang", "SGLang")):
            times = [f"{found[name][key]:.1f}" for key in ("median_us", "p95_us")]
            ratio = "" if name == "sglang" else f"{found['sglang']['median_us'] / found[name]['median_us']:.1f}"
            table.append([first, label, budget, *times, ratio])
            first = budget = ""
    return table


def run(args: Namespace) -> int:
    """Measure, print the table, write the JSON; 0."""
    results = [measure(requests) for requests in REQUESTS]
    layout = report.markdown if args.markdown else report.aligned
    cpu = machine.describe()["cpu"]
    notes = (
        f"{cpu}, one process, {REPEATS} alternating calls on {MATRICES} matrices, gamma {GAMMA}; budgets equal in all.",
        "search alone: step times at hand; ours: made of the step-time model first, as SGLang makes them of a table.",
    )
    sys.stdout.write("\n".join(["", layout(rows(results)), "", *notes, ""]))
    if args.json is not None:
        header = {"schema": report.SCHEMA, "versions": machine.versions(), "machine": machine.describe()}
        args.json.write_text(json.dumps({**header, "planner": results}, indent=1) + "\n", encoding="utf-8")
    return 0
