"""From the runs of a sweep to its frontier: medians and spread of every arm, values at anchors, area between arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from dspark_loadtest.frontier import Point, between, frontier, speed_at, value_at
from dspark_loadtest.sweep import Run
from sgl_dspark.comparison import spread

SCHEMA = "dspark-loadtest-pareto/1"
Pick = Callable[[dict[str, Any]], float | None]

# What is taken of each run; `dspark_loadtest.stats` says what each is.
METRICS: dict[str, Pick] = {
    "tok_s_user": lambda s: _of(s["tok_s_user"], "p50"),
    "tok_s_user_p10": lambda s: _of(s["tok_s_user"], "p10"),
    "output_tok_s": lambda s: s["output_tok_s"],
    "total_tok_s": lambda s: (s["prompt_tokens"] + s["completion_tokens"]) / s["wall_s"] if s["wall_s"] else None,
    "ttft_s_p50": lambda s: _of(s["ttft_due_s"], "p50"),
    "ttft_s_p99": lambda s: _of(s["ttft_due_s"], "p99"),
    "tpot_s_p50": lambda s: _of(s["tpot_s"], "p50"),
    "tpot_s_p90": lambda s: _of(s["tpot_s"], "p90"),
    "mean_accept_len": lambda s: _of(s["speculation"], "mean_accept_len"),
    "mean_verify_len": lambda s: _of(s["speculation"], "mean_verify_len"),
    "concurrency": lambda s: s["concurrency"],
    "goodput_share": lambda s: s["goodput"]["share"],
    "client_cpu_share": lambda s: _of(s.get("client"), "cpu_share"),
}


def _of(series: dict[str, Any] | None, key: str) -> float | None:
    return None if series is None else series[key]


def summarise_sweep(
    runs: Sequence[Run], anchors: Sequence[float], *, baseline: str, devices: int = 1
) -> dict[str, Any]:
    """Reduce runs to arms. A run with a problem counts in nothing but ``failed`` and ``excluded`` of its point.

    Parameters
    ----------
    runs : sequence of Run
    anchors : sequence of float
        Speeds of a user at which throughput is read off each frontier.
    baseline : str
        The arm that others are compared with.
    devices : int
        What throughput is divided by, as InferenceX does per GPU.

    Returns
    -------
    dict
        ``arms`` by name: ``points`` (each load: spread of every metric over repeats; None where no run is left),
        ``frontier`` of the medians,
        ``anchors`` (median, lowest and highest over the frontiers of single repeats; None where one was not measured on
        both sides), ``against_baseline``; and ``inferencex``, the same points under that project's names.
    """
    names = list(dict.fromkeys(run.arm for run in runs))
    arms = {name: _arm([run for run in runs if run.arm == name], anchors, devices) for name in names}
    base = [run for run in runs if run.arm == baseline]
    for name in names:
        own = [run for run in runs if run.arm == name]
        compared = base and name != baseline
        arms[name]["against_baseline"] = _against(sound(own), sound(base), devices) if compared else None
    problems = sorted({f"{run.arm}, load {run.load:g}: {p}" for run in runs for p in run.measured["problems"]})
    return {"baseline": baseline if base else None, "devices": devices, "arms": arms, "problems": problems}


def sound(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are what they claim to be: nothing failed, all tokens add up, the cache was emptied."""
    return [run for run in runs if not run.measured["problems"]]


def _arm(runs: Sequence[Run], anchors: Sequence[float], devices: int) -> dict[str, Any]:
    loads = sorted({run.load for run in runs})
    points = [_load(load, [run for run in runs if run.load == load]) for load in loads]
    middles = _middles(sound(runs), devices)
    return {
        "points": points,
        "frontier": [asdict(point) for point in frontier(middles)],
        "anchors": {f"{x:g}": _anchor(sound(runs), middles, x, devices) for x in anchors},
        "inferencex": [_inferencex(point, devices) for point in points],
    }


def _load(load: float, runs: Sequence[Run]) -> dict[str, Any]:
    kept = sound(runs)
    found: dict[str, Any] = {"load": load, "repeats": len(kept), "excluded": len(runs) - len(kept)}
    for name, pick in METRICS.items():
        values = [value for value in (pick(run.measured) for run in kept) if value is not None]
        measured = spread(values)
        found[name] = (
            None if measured is None else {"median": measured.median, "low": measured.low, "high": measured.high}
        )
    found["failed"] = sum(run.measured["requests"]["failed"] for run in runs)
    return found


def _middles(runs: Sequence[Run], devices: int) -> list[Point]:
    found = []
    for load in sorted({run.load for run in runs}):
        point = _load(load, [run for run in runs if run.load == load])
        if point["tok_s_user"] is not None and point["output_tok_s"] is not None:
            found.append(Point(point["tok_s_user"]["median"], point["output_tok_s"]["median"] / devices, load))
    return found


def _by_repeat(runs: Sequence[Run], devices: int) -> dict[int, list[Point]]:
    repeats: dict[int, list[Point]] = {}
    for run in runs:
        x, y = METRICS["tok_s_user"](run.measured), METRICS["output_tok_s"](run.measured)
        if x is not None and y is not None:
            repeats.setdefault(run.repeat, []).append(Point(x, y / devices, run.load))
    return repeats


def _anchor(runs: Sequence[Run], middles: Sequence[Point], x: float, devices: int) -> dict[str, Any]:
    single = [value_at(points, x) for points in _by_repeat(runs, devices).values()]
    measured = [value for value in single if value is not None]
    return {
        "output_tok_s": value_at(middles, x),
        "low": min(measured) if measured else None,
        "high": max(measured) if measured else None,
        "repeats": len(measured),
    }


def _against(runs: Sequence[Run], base: Sequence[Run], devices: int) -> dict[str, Any]:
    """Compare with the baseline: area over the speeds that both have, and speed at each throughput of its points."""
    ours, theirs = _middles(runs, devices), _middles(base, devices)
    whole = between(ours, theirs)
    base_repeats = _by_repeat(base, devices)
    pairs = [
        between(points, base_repeats[repeat])
        for repeat, points in _by_repeat(runs, devices).items()
        if repeat in base_repeats
    ]
    ratios = spread([pair.ratio for pair in pairs if pair is not None])
    speeds = [(point.y, point.x, speed_at(ours, point.y)) for point in frontier(theirs)]
    return {
        "between": None if whole is None else asdict(whole),
        "ratio_by_repeat": None if ratios is None else list(ratios.values),
        "speed_at_matched_throughput": [
            {"output_tok_s": y, "baseline_tok_s_user": x, "tok_s_user": found} for y, x, found in speeds
        ],
        "at_equal_load": _equal_load(runs, base),
    }


def _equal_load(runs: Sequence[Run], base: Sequence[Run]) -> list[dict[str, Any]]:
    """Return ratios of throughput and of users' speed to the baseline within each repeat, at the same load."""
    rows = []
    for load in sorted({run.load for run in runs} & {run.load for run in base}):
        row: dict[str, Any] = {"load": load}
        for name in ("output_tok_s", "tok_s_user"):
            mine = {run.repeat: METRICS[name](run.measured) for run in runs if run.load == load}
            theirs = {run.repeat: METRICS[name](run.measured) for run in base if run.load == load}
            ratios = []
            for repeat in sorted(mine.keys() & theirs.keys()):
                a, b = mine[repeat], theirs[repeat]
                if a is not None and b:
                    ratios.append(a / b)
            found = spread(ratios)
            row[name] = None if found is None else {"median": found.median, "low": found.low, "high": found.high}
        rows.append(row)
    return rows


def _inferencex(point: dict[str, Any], devices: int) -> dict[str, Any]:
    """Return a point under the names of InferenceX's results, which divide by GPUs; here by devices."""

    def middle(name: str) -> float | None:
        return None if point[name] is None else point[name]["median"]

    def over(value: float | None, divisor: float) -> float | None:
        return None if value is None else value / divisor

    def inverse(value: float | None) -> float | None:
        return 1 / value if value else None

    return {
        "conc": point["load"],
        "tput_per_gpu": over(middle("total_tok_s"), devices),
        "output_tput_per_gpu": over(middle("output_tok_s"), devices),
        "median_intvty": inverse(middle("tpot_s_p50")),
        "p90_intvty": inverse(middle("tpot_s_p90")),
        "median_tpot": middle("tpot_s_p50"),
        "median_ttft": middle("ttft_s_p50"),
    }
