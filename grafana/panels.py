"""How every panel is made: selectors, units, a description that defines its metrics, and what it says without data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, table, timeseries, xychart
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import xychart as xychart_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dspark_sglang.metrics.definitions import BY_NAME

SELECTED = 'job=~"$job",instance=~"$instance",model_name=~"$model"'
# SGLang's HTTP metrics do not name a model, and Prometheus's own neither.
SELECTED_HOST = 'job=~"$job",instance=~"$instance"'
# SGLang's numbers of requests: with priorities there is a series for each beside the total, whose priority is empty.
SELECTED_TOTAL = SELECTED + ',priority=""'
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
NAME = re.compile(r"\bdspark_[a-z_]+[a-z]\b")
COLUMNS = 24


@dataclass(frozen=True)
class Query:
    """A PromQL expression with ``SEL`` (``TOTAL``, ``SELHOST``) where the dashboard's variables go, and its legend."""

    expr: str
    legend: str = ""
    instant: bool = False
    as_table: bool = False

    def text(self) -> str:
        """Write the expression out."""
        written = self.expr.replace("SELHOST", SELECTED_HOST).replace("TOTAL", SELECTED_TOTAL)
        return written.replace("SEL", SELECTED)


@dataclass(frozen=True)
class Pair:
    """One series of a scatter plot: two queries joined by a field, and what they are called then."""

    name: str
    x_query: str
    y_query: str
    joined: str
    x_field: str
    y_field: str


@dataclass(frozen=True)
class Panel:
    """One panel; ``kind`` is timeseries, stat, bars, scatter or table."""

    title: str
    about: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    quiet: str = "No traffic in this range"
    low: float | None = 0.0
    high: float | None = None
    stacked: bool = False
    axes: tuple[str, str] = ("", "")
    pairs: Sequence[Pair] = field(default_factory=tuple)


def description(panel: Panel) -> str:
    """Say what a panel shows, then define each metric of ours in it, from the definitions."""
    found: dict[str, str] = {}
    for query in panel.queries:
        for word in NAME.findall(query.expr):
            name = word if word in BY_NAME else re.sub(r"_(bucket|sum|count)$", "", word)
            found[name] = BY_NAME[name].help
    lines = [f"`{name}`: {text}" for name, text in found.items()]
    return "\n\n".join([panel.about, *lines])


def build(panel: Panel) -> Any:
    """Return the builder of a panel, without its place."""
    makers = {
        "timeseries": _timeseries,
        "stat": _stat,
        "bars": _bars,
        "scatter": _scatter,
        "table": _table,
    }
    made = makers[panel.kind](panel)
    made.title(panel.title).description(description(panel)).datasource(SOURCE).no_value(panel.quiet)
    made.span(panel.width).height(panel.height)
    if panel.kind != "scatter":
        made.unit(panel.unit)
        if panel.low is not None:
            made.min(panel.low)
        if panel.high is not None:
            made.max(panel.high)
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.text()).ref_id(letter).datasource(SOURCE)
        if query.legend:
            target.legend_format(query.legend)
        if query.instant:
            target.instant()
        else:
            target.range()
        if query.as_table:
            target.format(PromQueryFormat.TABLE)
        made.with_target(target)
    return made


def _timeseries(panel: Panel) -> Any:
    made = timeseries.Panel().line_width(1).fill_opacity(60 if panel.stacked else 8)
    made.show_points(common_models.VisibilityMode.NEVER).span_nulls(False)
    if panel.stacked:
        made.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    made.legend(
        common.VizLegendOptions()
        .show_legend(len(panel.queries) > 1 or "{{" in panel.queries[0].legend)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )
    return made.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))


def _stat(panel: Panel) -> Any:
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    return stat.Panel().reduce_options(reduce).graph_mode(common_models.BigValueGraphMode.AREA).decimals(1)


def _bars(panel: Panel) -> Any:
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    made = bargauge.Panel().reduce_options(reduce).orientation(common_models.VizOrientation.HORIZONTAL)
    return made.display_mode(common_models.BarGaugeDisplayMode.BASIC)


def _table(panel: Panel) -> Any:
    hidden = {"Time": True, "Value": True, "__name__": True}
    return table.Panel().with_transformation(
        models.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden})
    )


def _scatter(panel: Panel) -> Any:
    """Draw a point for each time or label at which both queries of a pair have a value."""
    made = xychart.Panel().show(xychart_models.XYShowMode.POINTS).mapping(xychart_models.SeriesMapping.MANUAL)
    series = []
    for index, pair in enumerate(panel.pairs):
        made.with_transformation(
            models.DataTransformerConfig(
                id_val="joinByField",
                options={"byField": pair.joined, "mode": "outer"},
                filter_val=models.MatcherConfig(id_val="byRefId", options=f"/^(?:{pair.x_query}|{pair.y_query})$/"),
            )
        )
        series.append(
            xychart.XYSeriesConfig()
            .frame(_matcher(xychart.XychartXYSeriesConfigFrame, "byIndex", index))
            .x(_matcher(xychart.XychartXYSeriesConfigX, "byName", pair.x_field))
            .y(_matcher(xychart.XychartXYSeriesConfigY, "byName", pair.y_field))
            .name(xychart.XychartXYSeriesConfigName().fixed(pair.name))
        )
    made.series(series).axis_label(panel.axes[1])
    return made.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )


def _matcher(kind: Any, matcher: str, option: Any) -> Any:
    return kind().matcher(xychart.MatcherConfig().id(matcher).options(option))
