"""The report of a sweep: ``pareto.json``, ``pareto.md``, ``pareto.html``, figures 7 and 8 of the paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark_loadtest.report.asked import asked
from dspark_loadtest.report.document import Block, Document, Heading, Picture, Table, Warn
from dspark_loadtest.report.figures import save, tidy
from dspark_loadtest.report.run import number, provenance_rows
from dspark_loadtest.session import EMPTIED
from sgl_dspark.comparison import styles
from sgl_dspark.reports.figure import new_figure

_HOW = (
    "Each point is the median over repeats of one arm at one load; bars reach from the lowest to the highest repeat. "
    "The frontier is made of the points that no other point of the same arm beats on both axes. Values at an anchor "
    "are linear between two measured neighbours of the frontier; where there are none on both sides there is no value. "
    "The speed of a user is the median over answers of decoding tokens a second, without prefill and queueing. "
    "Throughput counts output tokens of the steady time: while all clients ask, or with rates from when the server has "
    "filled to the last request that was due. A run with a problem, such as a request that failed, is in no median, "
    "frontier, anchor or ratio; it is counted in the tables."
)
_SHARED = (
    "The policies take turns on one server, which goes on calibrating its confidence and timing its steps all the "
    "while: the state that adaptive decides by was learnt from the runs of the other policies too."
)
_ODD = (
    "The number of repeats is odd: the first server's turns lie earlier on average, and a machine that slows down "
    "favours it."
)
_PREFIX = (
    "Each load asks the beginning of the same trace, and a larger load more of it, so requests are the same for all "
    "arms at one load and differ from one load to another."
)


def write_pareto(data: dict[str, Any], folder: Path) -> Path:
    """Write a sweep's data and everything drawn from it; return the HTML.

    Parameters
    ----------
    data : dict
        ``summary`` as `dspark_loadtest.pareto.summarise_sweep` makes it, beside ``runs``, ``server``, ``trace``,
        ``plan`` and ``client``.
    folder : Path
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pareto.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    document = make_document(data, [figure_7(data, folder), figure_8(data, folder)])
    (folder / "pareto.md").write_text(document.markdown(), encoding="utf-8")
    page = folder / "pareto.html"
    page.write_text(document.html(), encoding="utf-8")
    return page


def make_document(data: dict[str, Any], pictures: Sequence[Picture]) -> Document:
    """Lay out the report."""
    summary = data["summary"]
    document = Document(f"Throughput against the speed of a user: {data['server']['model']}")
    if not data["complete"]:
        document.add(Warn("The sweep was broken off; what follows is what was measured until then."))
    document.add(*(Warn(problem) for problem in summary["problems"]))
    document.add(_what(data), asked(data), *_limits(data), *pictures, _HOW)
    document.add(Heading("Measured"), _points(summary, data["by"]))
    if summary["baseline"] is not None:
        document.add(Heading(f"Against {summary['baseline']}"), *_against(summary))
    if any(arm["anchors"] for arm in summary["arms"].values()):
        document.add(Heading("Throughput at anchors"), _anchors(summary))
    document.add(Heading("Where it comes from"), Table(("", "value"), provenance_rows(data)))
    return document


def _what(data: dict[str, Any]) -> str:
    plan = data["plan"]
    return (
        f"{len(data['summary']['arms'])} arms, {plan['repeats']} turns of each server, {data['by']} "
        f"{', '.join(f'{load:g}' for load in plan['loads'])}; arms in alternation on one machine, the same requests "
        f"for all; {_cache(data['runs'])}; cores: {data.get('pinning', 'not recorded')}."
    )


def _cache(runs: Sequence[dict[str, Any]]) -> str:
    """Say what became of the prefix cache, as the runs found it."""
    states = [run.get("prefix_cache") for run in runs]
    emptied = sum(state == EMPTIED for state in states)
    if emptied == len(states):
        return "the prefix cache was emptied before every run"
    if None in states:
        return "whether the prefix cache was emptied is not recorded"
    return f"the prefix cache was emptied before {emptied} of {len(states)} runs"


def _limits(data: dict[str, Any]) -> list[str]:
    """Say what the comparison does not hold equal."""
    found = [_SHARED] if len(data.get("policies", ())) > 1 else []
    found.append(_PREFIX)
    if data["plan"]["repeats"] % 2:
        found.append(_ODD)
    return found


def _points(summary: dict[str, Any], by: str) -> Table:
    rows = []
    for name, arm in summary["arms"].items():
        for point in arm["points"]:
            names = ("output_tok_s", "tok_s_user", "tok_s_user_p10", "ttft_s_p50", "mean_accept_len", "mean_verify_len")
            shown = [_spread(point[key]) for key in names]
            excluded = str(point.get("excluded", "-"))
            cpu = point.get("client_cpu_share")
            client = "-" if cpu is None else f"{100 * cpu['high']:.0f} %"
            rows.append((f"{name}, {point['load']:g}", *shown, str(point["failed"]), excluded, client))
    header = (
        "output tok/s",
        "tok/s/user",
        "tok/s/user, p10",
        "TTFT s, p50",
        "accept length",
        "verify length",
        "failed",
        "runs left out",
        "client's share of a core, most",
    )
    return Table((f"arm, {by}", *header), rows)


def _against(summary: dict[str, Any]) -> list[Block]:
    areas, loads = [], []
    for name, arm in summary["arms"].items():
        found = arm["against_baseline"]
        if found is None:
            continue
        area = found["between"]
        if area is None:
            areas.append((name, "no speed in common", "-", "-"))
        else:
            repeats = ", ".join(f"{ratio:.2f}" for ratio in found["ratio_by_repeat"] or ())
            span = f"{number(area['low'])} to {number(area['high'])}"
            areas.append((name, span, f"{area['ratio']:.2f}", repeats))
        loads += [
            (f"{name}, {row['load']:g}", _spread(row["output_tok_s"], "x"), _spread(row["tok_s_user"], "x"))
            for row in found["at_equal_load"]
        ]
    return [
        Table(("arm", "tok/s/user that both have", "area ratio of the medians", "of each repeat"), areas),
        "At equal load, the ratio within each repeat: median (lowest to highest).",
        Table(("arm, load", "output tok/s", "tok/s/user"), loads),
    ]


def _anchors(summary: dict[str, Any]) -> Table:
    names = list(next(iter(summary["arms"].values()))["anchors"])
    rows = []
    for name, arm in summary["arms"].items():
        cells = []
        for anchor in names:
            found = arm["anchors"][anchor]
            value = found["output_tok_s"]
            span = "" if found["low"] is None else f" ({number(found['low'])}-{number(found['high'])})"
            cells.append("not measured" if value is None else number(value) + span)
        rows.append((name, *cells))
    return Table(("output tok/s of", *(f"{anchor} tok/s/user" for anchor in names)), rows)


def _spread(found: dict[str, float] | None, unit: str = "") -> str:
    if found is None:
        return "-"
    return f"{number(found['median'])}{unit} ({number(found['low'])}-{number(found['high'])})"


def figure_7(data: dict[str, Any], folder: Path) -> Picture:
    """Draw throughput against the speed of a user: every run a dot, medians with their spread, frontiers as lines."""
    summary, devices = data["summary"], data["summary"]["devices"]
    figure = new_figure(7.2, 4.8)
    panel = figure.subplots()
    for name, look in styles(list(summary["arms"])).items():
        arm = summary["arms"][name]
        singles = [run for run in data["runs"] if run["arm"] == name and not run["problems"]]
        singles = [run for run in singles if run["tok_s_user"] and run["output_tok_s"]]
        dots = [(run["tok_s_user"], run["output_tok_s"] / devices) for run in singles]
        panel.scatter(*zip(*dots, strict=True) if dots else ([], []), s=9, alpha=0.35, color=look["color"])
        _error_bars(panel, arm["points"], devices, look)
        front = arm["frontier"]
        panel.plot([p["x"] for p in front], [p["y"] for p in front], label=name, **look)
    for anchor in next(iter(summary["arms"].values()))["anchors"]:
        panel.axvline(float(anchor), color="grey", linestyle=":", linewidth=1)
    per = "" if devices == 1 else " of a device"
    tidy(panel, "tokens per second of a user", f"output tokens per second{per}")
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize="small")
    return save(figure, folder, "figure-7", "Throughput against the speed of a user (the paper's figure 7).")


def _error_bars(panel: Any, points: Sequence[dict[str, Any]], devices: int, look: dict[str, Any]) -> None:
    for point in points:
        x, y = point["tok_s_user"], point["output_tok_s"]
        if x is None or y is None:
            continue
        reach_x = [[x["median"] - x["low"]], [x["high"] - x["median"]]]
        reach_y = [[(y["median"] - y["low"]) / devices], [(y["high"] - y["median"]) / devices]]
        panel.errorbar(
            x["median"], y["median"] / devices, xerr=reach_x, yerr=reach_y, fmt="none", color=look["color"], alpha=0.6
        )


def figure_8(data: dict[str, Any], folder: Path) -> Picture:
    """Draw throughput and verify length against the load."""
    summary = data["summary"]
    labels = {"output_tok_s": "output tokens per second", "mean_verify_len": "verify length, anchor included"}
    figure = new_figure(9.6, 3.8)
    for panel, (metric, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for name, look in styles(list(summary["arms"])).items():
            points = [p for p in summary["arms"][name]["points"] if p[metric] is not None]
            if points:
                middles = [p[metric]["median"] for p in points]
                below = [p[metric]["median"] - p[metric]["low"] for p in points]
                above = [p[metric]["high"] - p[metric]["median"] for p in points]
                panel.errorbar([p["load"] for p in points], middles, yerr=[below, above], label=name, capsize=2, **look)
        loads = data["plan"]["loads"]
        panel.set_xscale("log", base=2)
        panel.set_xticks(loads, [f"{load:g}" for load in loads])
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        tidy(panel, data["by"], label)
    figure.axes[0].legend(frameon=False, fontsize="small")
    return save(figure, folder, "figure-8", "Throughput and verify length against the load (the paper's figure 8).")
