"""Draw the dashboards as pictures, from a Prometheus: the same queries, without a Grafana.

python tools/draw_dashboards.py http://127.0.0.1:9090 --minutes 10 --out runs/dashboards
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, PANEL_INCHES = 3, (6.0, 3.4)


class Source:
    """Asks a Prometheus for the last minutes.

    Parameters
    ----------
    url : str
    minutes : float
    """

    def __init__(self, url: str, minutes: float) -> None:
        self.url, self.seconds, self.now = url.rstrip("/"), minutes * 60, time.time()

    def ask(self, expr: str, instant: bool) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return labels and (time, value) of each series of an expression of a dashboard."""
        for name, value in (("$__rate_interval", "20s"), ("$__range", f"{self.seconds:.0f}s")):
            expr = expr.replace(name, value)
        expr = re.sub(r"\$(job|instance|model)\b", ".*", expr)
        step = max(self.seconds / 300, 1.0)
        span = {"time": self.now} if instant else {"start": self.now - self.seconds, "end": self.now, "step": step}
        query = urllib.parse.urlencode({"query": expr, **span})
        path = "query" if instant else "query_range"
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=60) as answer:
            result = json.load(answer)["data"]["result"]
        found = []
        for series in result:
            pairs = [series["value"]] if instant else series["values"]
            values = [(float(at), float(value)) for at, value in pairs]
            found.append((series["metric"], [(at, value) for at, value in values if not math.isnan(value)]))
        return found


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    """Fill a legend in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target.get("legendFormat", ""))


def draw_lines(axis: Any, panel: dict[str, Any], source: Source) -> None:
    """Draw a timeseries, or a stat as its history."""
    for target in panel["targets"]:
        for labels, values in source.ask(target["expr"], False):
            times = [(at - source.now) / 60 for at, _ in values]
            axis.plot(times, [value for _, value in values], lw=1.2, label=legend(target, labels) or None)
    axis.set_xlabel("minutes", fontsize=7)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6, loc="upper left")


def draw_bars(axis: Any, panel: dict[str, Any], source: Source) -> None:
    """Draw a bar for each series."""
    (target,) = panel["targets"]
    found = [(legend(target, labels), values[-1][1]) for labels, values in source.ask(target["expr"], True) if values]
    found.sort(key=lambda pair: int(re.sub(r"\D", "", pair[0]) or sys.maxsize))
    axis.barh([name for name, _ in found], [value for _, value in found])
    axis.invert_yaxis()


def draw_scatter(axis: Any, panel: dict[str, Any], source: Source) -> None:
    """Draw a point wherever both queries of a pair have a value."""
    queries = {target["refId"]: target for target in panel["targets"]}
    for transformation in panel["transformations"]:
        x, y = re.findall(r"[A-H](?=[|)])", transformation["filter"]["options"])
        joined = transformation["options"]["byField"]
        sides = []
        for name in (x, y):
            target, side = queries[name], {}
            for labels, values in source.ask(target["expr"], bool(target.get("instant"))):
                side.update(
                    dict(values) if joined == "Time" else {labels.get(joined, ""): values[-1][1]} if values else {}
                )
            sides.append(side)
        shared = sorted(sides[0].keys() & sides[1].keys())
        axis.scatter([sides[0][key] for key in shared], [sides[1][key] for key in shared], s=10)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)


def draw_table(axis: Any, panel: dict[str, Any], source: Source) -> None:
    """Write the labels out."""
    lines = []
    for labels, _ in source.ask(panel["targets"][0]["expr"], True):
        hidden = ("__name__", "job", "instance")
        lines += [f"{name}: {value}" for name, value in labels.items() if name not in hidden]
    axis.axis("off")
    axis.text(0, 1, "\n".join(lines), va="top", fontsize=7)


KINDS = {"timeseries": draw_lines, "stat": draw_lines, "bargauge": draw_bars, "xychart": draw_scatter}


def draw(path: Path, source: Source, out: Path) -> None:
    """Draw one dashboard, and say what has no data as the dashboard would."""
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    rows = -(-len(panels) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows))
    for axis, panel in zip(axes.flat, panels, strict=False):
        KINDS.get(panel["type"], draw_table)(axis, panel, source)
        axis.set_title(panel["title"], fontsize=9)
        axis.tick_params(labelsize=7)
        if not axis.has_data() and panel["type"] != "table":
            axis.text(0.5, 0.5, panel["fieldConfig"]["defaults"]["noValue"], ha="center", transform=axis.transAxes)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(out / f"{path.stem}.png", dpi=80)
    plt.close(figure)


def main() -> int:
    """Draw every dashboard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a Prometheus")
    parser.add_argument("--minutes", type=float, default=10.0, help="how far back (default: 10)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "dashboards")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    source = Source(args.url, args.minutes)
    for path in sorted((ROOT / "grafana" / "dashboards").glob("*.json")):
        draw(path, source, args.out)
        print(args.out / f"{path.stem}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
