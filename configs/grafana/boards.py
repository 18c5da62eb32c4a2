"""What a dashboard is made of here, and its form for Grafana.

A board is rows of panels, a panel one question with its queries. The terms are few on purpose, so that all boards look
alike; `to_grafana` is the only place that knows the SDK's builders. Expressions may use `$__rate_interval`, which
Grafana makes at least four scrapes long, `$cluster` and `$layer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

WIDTH = 24
"""Columns of Grafana's grid."""

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${source}")
"""Whatever the variable of this name says, so that a board works with any Prometheus."""

Kind = Literal["lines", "stacked", "steps", "number", "heatmap"]
"""lines: over time; stacked: their sum as well; steps: whole numbers that hold until the next; number: the last value,
large; heatmap: a histogram's buckets over time."""

Color = Literal["green", "yellow", "orange", "red", "blue", "text"]


@dataclass(frozen=True)
class Query:
    """A PromQL expression and how its series are called, with `{{label}}`."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One question. unit: Grafana's id. thresholds: from which value on which colour, ascending; below them, base."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 12
    height: int = 8
    thresholds: tuple[tuple[float, Color], ...] = ()
    base: Color = "green"
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    logarithmic: bool = False
    empty: str = "no data"

    def __post_init__(self) -> None:
        assert 0 < self.width <= WIDTH, f"{self.title}: {self.width} columns"
        assert self.queries, f"{self.title} asks nothing"
        values = [value for value, _ in self.thresholds]
        assert values == sorted(values), f"{self.title}: thresholds do not ascend"


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Mark:
    """What is shown on the time axis of every panel. The expression's label `alertname` is Grafana's default title."""

    name: str
    expr: str
    color: Color


@dataclass(frozen=True)
class Board:
    """A dashboard. by_layer: it has the variable `$layer`, to be used as in `layer=~"$layer"`."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...] = ()
    by_layer: bool = False


TAG = "kittiwake"

Builder = timeseries.Panel | stat.Panel | heatmap.Panel


def to_grafana(board: Board) -> models.Dashboard:
    """Return the dashboard as the SDK's model."""
    made = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .editable()
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("Kittiwake")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    )
    made.with_variable(
        builders.QueryVariable("cluster")
        .label("Cluster")
        .datasource(SOURCE)
        .query("label_values(kittiwake_slices, cluster)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if board.by_layer:
        made.with_variable(
            builders.QueryVariable("layer")
            .label("Layer")
            .datasource(SOURCE)
            .query('label_values(kittiwake_slices{cluster="$cluster"}, layer)')
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".+")
        )
    for mark in board.marks:
        made.annotation(
            builders.AnnotationQuery()
            .name(mark.name)
            .datasource(SOURCE)
            .enable(True)
            .icon_color(mark.color)
            .expr(mark.expr)
        )
    number = top = 0
    for row in board.rows:
        number += 1
        made.with_row(builders.Row(row.title).id(number).grid_pos(models.GridPos(h=1, w=WIDTH, x=0, y=top)))
        top += 1
        left = tallest = 0
        for panel in row.panels:
            number += 1
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            place = models.GridPos(h=panel.height, w=panel.width, x=left, y=top)
            made.with_panel(_panel(panel).id(number).grid_pos(place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return made.build()


def _panel(panel: Panel) -> Builder:
    made: Builder = _KINDS[panel.kind](panel)
    made.title(panel.title).description(panel.description).datasource(SOURCE).unit(panel.unit).no_value(panel.empty)
    if panel.minimum is not None and panel.kind != "heatmap":
        made.min(panel.minimum)
    if panel.maximum is not None:
        made.max(panel.maximum)
    if panel.decimals is not None:
        made.decimals(panel.decimals)
    steps = [models.Threshold(None, panel.base), *(models.Threshold(value, color) for value, color in panel.thresholds)]
    made.thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    for place, query in enumerate(panel.queries):
        target = prometheus.Dataquery().ref_id(chr(ord("A") + place)).datasource(SOURCE).expr(query.expr).range()
        if query.legend:
            target.legend_format(query.legend)
        if panel.kind == "heatmap":
            target.format(prometheus_models.PromQueryFormat.HEATMAP)
        made.with_target(target)
    return made


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        .line_width(2 if panel.kind == "steps" else 1)
        .fill_opacity(10)
        .show_points(common.VisibilityMode.AUTO)
        .span_nulls(False)
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
    )
    if panel.thresholds:
        made.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED))
    if panel.logarithmic:
        made.scale_distribution(common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10))
    if panel.kind == "steps":
        made.line_interpolation(common.LineInterpolation.STEP_AFTER)
    if panel.kind == "stacked":
        made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")).fill_opacity(40)
    return made


def _number(panel: Panel) -> stat.Panel:
    del panel
    return (
        stat.Panel()
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common.BigValueGraphMode.AREA)
        .color_mode(common.BigValueColorMode.VALUE)
        .text_mode(common.BigValueTextMode.AUTO)
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    )


def _heatmap(panel: Panel) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .calculate(False)
        .cell_gap(1)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .scale_distribution(common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LINEAR))
        .show_legend()
        .hide_y_histogram()
    )


_KINDS: dict[Kind, Callable[[Panel], Builder]] = {
    "lines": _lines,
    "stacked": _lines,
    "steps": _lines,
    "number": _number,
    "heatmap": _heatmap,
}
