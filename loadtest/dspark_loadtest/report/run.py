"""The report of one run: ``summary.json``, ``requests.jsonl``, ``report.md``, ``report.html`` and two figures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark_loadtest.report import figures
from dspark_loadtest.report.asked import asked
from dspark_loadtest.report.document import Document, Heading, Table, Warn
from dspark_loadtest.report.machine import describe_client
from dspark_loadtest.session import Measured, Served, Workload
from dspark_loadtest.stats import FAULTLESS

SCHEMA = "dspark-loadtest-run/1"
_SERIES = {
    "ttft_s": ("TTFT from sending", "ms"),
    "ttft_due_s": ("TTFT from when due", "ms"),
    "tpot_s": ("time per output token", "ms"),
    "tok_s_user": ("tok/s of a user", ""),
    "latency_s": ("latency from sending", "s"),
    "latency_due_s": ("latency from when due", "s"),
    "chunk_gap_s": ("gap between chunks", "ms"),
    "tokens_per_chunk": ("tokens per chunk", ""),
    "send_lag_s": ("send lag of this client", "ms"),
    "turn_wait_s": ("wait for the turn before", "s"),
}
_DEFINITIONS = (
    "Tokens are counted from the server's cumulative usage, never from chunks. TTFT and latency are given twice: from "
    "sending, which is the server's part, and from when the request was due, which is what a user of the trace waits. "
    "Time per output token leaves out the first chunk's tokens. tok/s of a user is its inverse. Throughput is that of "
    "the steady time: from when the server has filled to the last request that was due (open loop), or while all "
    "clients ask (closed)."
)


def to_json(measured: Measured, served: Served, workload: Workload) -> dict[str, Any]:
    """Return everything about a run that is not a single request's."""
    return {
        "schema": SCHEMA,
        "server": {"url": served.endpoint.url, "model": served.model, "context": served.context},
        "client": describe_client(),
        "trace": measured.trace.source,
        "plan": asdict(workload.plan),
        "request": asdict(workload.settings),
        "fit": asdict(workload.fit),
        "mix": workload.mix,
        "categories": {name: found["requests"] for name, found in measured.summary["categories"].items()},
        "seed": workload.seed,
        "max_send_lag_s": workload.max_send_lag_s,
        "summary": measured.summary,
    }


def write_report(measured: Measured, served: Served, workload: Workload, folder: Path) -> Path:
    """Write all files of a run into ``folder``; return the HTML."""
    folder.mkdir(parents=True, exist_ok=True)
    data = to_json(measured, served, workload)
    (folder / "summary.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    lines = (json.dumps(record.to_json()) + "\n" for record in measured.outcome.records)
    with (folder / "requests.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(lines)
    document = make_document(data)
    pictures = [figures.timeline(measured.outcome, folder), figures.waiting(measured.outcome, folder)]
    document.add(Heading("Over the run"), *[picture for picture in pictures if picture is not None])
    (folder / "report.md").write_text(document.markdown(), encoding="utf-8")
    page = folder / "report.html"
    page.write_text(document.html(), encoding="utf-8")
    return page


def make_document(data: dict[str, Any]) -> Document:
    """Lay out the report of `to_json`'s data, without figures."""
    summary = data["summary"]
    document = Document(f"Load test of {data['server']['model']}")
    document.add(*(Warn(problem) for problem in summary["problems"]))
    if summary["interrupted"]:
        document.add(Warn("The run was broken off; what follows is what was measured until then."))
    document.add(_what(data), Heading("Figures"), figures_table(summary), series_table(summary), *_given_up(summary))
    document.add(_DEFINITIONS)
    document.add(Heading("Text"), _categories(summary), *_speculation_note(summary))
    document.add(Heading("Requests"), outcomes_table(summary), Heading("Accounting"), *accounting(summary))
    document.add(Heading("Where it comes from"), *provenance(data))
    return document


def _what(data: dict[str, Any]) -> str:
    plan = data["plan"]
    how = (
        f"open loop at {plan['speed']:g} times the trace's clock"
        if plan["concurrency"] is None
        else f"closed loop of {plan['concurrency']} clients"
    )
    cache = data["summary"]["prefix_cache"]
    return f"{how[0].upper()}{how[1:]}; the prefix cache was {cache} before it. {asked(data)}"


def figures_table(summary: dict[str, Any]) -> Table:
    """Return the figures that a run has one of."""
    good, spec = summary["goodput"], summary["speculation"]
    rows = [
        ("output tok/s, steady", number(summary["output_tok_s"])),
        ("output tok/s, whole run", number(summary["output_tok_s_whole"])),
        ("requests under way, mean", number(summary["concurrency"])),
        ("answered of sent", f"{summary['requests']['ok']} of {summary['requests']['sent']}"),
        (f"goodput ({_slo(good['slo'])})", _percent(good["share"])),
        ("seconds", number(summary["wall_s"])),
        ("processor time of this client", _percent(summary["client"]["cpu_share"]) + " of a core"),
    ]
    if spec is not None:
        rows += [
            ("accept length", f"{spec['mean_accept_len']:.3f}"),
            ("verify length", f"{spec['mean_verify_len']:.3f}"),
        ]
    return Table(("figure", "value"), rows)


def series_table(summary: dict[str, Any]) -> Table:
    """Return the percentiles of every series that was measured."""
    rows = []
    for name, (label, unit) in _SERIES.items():
        found = summary[name]
        if found is not None:
            scale = 1e3 if unit == "ms" else 1.0
            shown = [number(scale * found[key]) for key in ("mean", "p10", "p50", "p90", "p99", "max")]
            rows.append((f"{label}{', ' + unit if unit else ''}", *shown))
    return Table(("series", "mean", "p10", "p50", "p90", "p99", "max"), rows)


def _categories(summary: dict[str, Any]) -> Table:
    rows = []
    for name, found in summary["categories"].items():
        rate, spec = found["tok_s_user"], found["speculation"]
        rows.append(
            (
                name,
                str(found["requests"]),
                str(found["completion_tokens"]),
                number(rate["p50"]) if rate else "-",
                f"{spec['mean_accept_len']:.3f}" if spec else "-",
            )
        )
    return Table(("category", "requests", "tokens", "tok/s of a user, p50", "accept length"), rows)


def _speculation_note(summary: dict[str, Any]) -> list[str]:
    if summary["speculation"] is None:
        return []
    return ["Accept lengths are pooled: accepted drafts over rounds, summed over requests, plus one."]


def outcomes_table(summary: dict[str, Any]) -> Table:
    """Return how requests ended, and why some were sent again."""
    rows = [(name, str(count)) for name, count in summary["requests"]["outcomes"].items()]
    rows += [(f"sent again after {name}", str(count)) for name, count in summary["requests"]["retries"].items()]
    return Table(("outcome", "requests"), rows)


def _given_up(summary: dict[str, Any]) -> list[str]:
    count = summary["requests"]["given_up"]
    text = "were given up; in TTFT, latency and speed they count with the time that was waited, the true one is longer."
    return [f"{count} requests {text}"] if count else []


def accounting(summary: dict[str, Any]) -> list[str | Table]:
    """Return what both sides counted."""
    found, rows = summary["reconciliation"], []
    for kind in ("completion", "prompt"):
        if kind in found:
            side = found[kind]
            client = str(side["answered"])
            if side.get("client_most", side["answered"]) != side["answered"]:
                client = f"{side['client_least']} to {side['client_most']}"
            if "worker_least" in side:
                client += f" (the worker: {side['worker_least']:.0f} to {side['worker_most']:.0f})"
            rows.append((f"{kind} tokens", client, f"{side['server']:.0f}", "yes" if side["agrees"] else "NO"))
    lost = {name: count for name, count in summary["accounting"].items() if count}
    text = "" if set(lost) - set(FAULTLESS) else "No token of an answer was lost or counted twice. "
    text += "".join(f"{name.replace('_', ' ').capitalize()}: {count}. " for name, count in lost.items())
    if not rows:
        return [text.strip(), "The server exports no counters to compare with (SGLang: --enable-metrics)."]
    return [text.strip(), Table(("", "client", "server", "agree"), rows)]


def provenance(data: dict[str, Any]) -> list[str | Table]:
    """Return the trace with every rule that changed it, the prompts, the server and the client's machine."""
    prompts = data["summary"]["prompts"]
    ratio = prompts["tokens_over_wanted"]
    said = "" if ratio is None else f"; they came to {ratio:.3f} of what was asked"
    lengths = ("prompt lengths", f"counted by {prompts['counted_by']}{said}")
    return [Table(("", "value"), [*provenance_rows(data), lengths])]


def provenance_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the trace, the server and the client's machine were."""
    trace = dict(data["trace"])
    changes = trace.pop("changes", ())
    rows = [(f"trace {key.replace('_', ' ')}", str(value)) for key, value in trace.items()]
    rows += [(f"change {i}", rule) for i, rule in enumerate(changes, 1)]
    rows += [(f"server {key}", str(value)) for key, value in data["server"].items()]
    rows += [(f"client {key.replace('_', ' ')}", str(value)) for key, value in data["client"].items()]
    return rows


def number(value: float | None) -> str:
    """Show a number with three digits that count, or a dash."""
    if value is None:
        return "-"
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3g}"
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _slo(slo: dict[str, Any]) -> str:
    parts = []
    if slo["ttft_s"] is not None:
        parts.append(f"TTFT up to {slo['ttft_s']:g} s")
    if slo["tok_s_user"] is not None:
        parts.append(f"{slo['tok_s_user']:g} tok/s and more")
    return ", ".join(parts) or "any answer"
