"""Draws a dashboard with matplotlib: each panel where the dashboard's grid has it, in its kind's form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from configs.grafana.asking import Series
from configs.grafana.units import shown

_dates: Any = matplotlib.dates  # has no annotations

COLUMN_INCHES, ROW_INCHES = 0.75, 0.42
"""What a unit of Grafana's grid measures here."""
LEGEND_MAX = 12
COLORS = {
    "green": "#3a8f4f",
    "yellow": "#c9a100",
    "orange": "#d97706",
    "red": "#c0322b",
    "blue": "#3b74b8",
    "text": "#222222",
}

Document = Mapping[str, Any]
Mark = tuple[str, str, Series]


@dataclass(frozen=True)
class Answer:
    """The series of one query, and the legend that names them."""

    legend: str
    series: tuple[Series, ...]

    def named(self) -> list[tuple[str, Series]]:
        """Return the series, each with its name."""
        return [(one.name(self.legend), one) for one in self.series]


def draw(
    board: Document,
    answers: Sequence[tuple[Document, Sequence[Answer]]],
    marks: Sequence[Mark],
    window: tuple[float, float],
) -> Figure:
    """Return the board as a figure. window: the time shown, in seconds since 1970."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 2
    width, height = 24 * COLUMN_INCHES, rows * ROW_INCHES
    figure = Figure(figsize=(width, height), dpi=80, facecolor="white")
    until = datetime.fromtimestamp(window[1], UTC)
    figure.text(0.01, 1 - 0.8 / rows, f"{board['title']}, until {until:%Y-%m-%d %H:%M:%S} UTC", size=15, weight="bold")
    for row in board["panels"]:
        if row["type"] == "row":
            figure.text(0.01, 1 - (row["gridPos"]["y"] + 2.7) / rows, row["title"], size=13, color=COLORS["blue"])
    for panel, answered in answers:
        place = panel["gridPos"]
        left, top = place["x"] / 24 + 0.6 / width, (place["y"] + 2 + 1.1) / rows
        size = (place["w"] / 24 - 0.9 / width, (place["h"] - 2.1) / rows)
        axes = figure.add_axes((left, 1 - top - size[1], *size))
        axes.set_title(panel["title"], size=10, loc="left")
        named = [pair for answer in answered for pair in answer.named()]
        if not any(not math.isnan(value) for _, one in named for value in one.values):
            _nothing(axes, panel)
            continue
        match panel["type"]:
            case "timeseries":
                _lines(axes, panel, named, marks, window)
            case "heatmap":
                _heatmap(axes, panel, named, window)
            case "stat":
                _number(axes, panel, named)
            case other:
                raise ValueError(f"panel {panel['title']!r} is of type {other!r}, which is not drawn")
    return figure


def defaults(panel: Document) -> Document:
    """Return the settings that hold for all of a panel's series."""
    found: Document = panel.get("fieldConfig", {}).get("defaults", {})
    return found


def color_of(panel: Document, value: float) -> str:
    """Return the colour that the panel's thresholds give a value."""
    color = "text"
    for step in defaults(panel).get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return COLORS.get(color, COLORS["text"])


def _date(seconds: float) -> float:
    return float(_dates.date2num(datetime.fromtimestamp(seconds, UTC)))


def _time_axis(axes: Axes, window: tuple[float, float]) -> None:
    axes.set_xlim(_date(window[0]), _date(window[1]))
    axes.xaxis.set_major_locator(_dates.AutoDateLocator(minticks=3, maxticks=7))
    axes.xaxis.set_major_formatter(_dates.DateFormatter("%H:%M:%S", tz=UTC))
    axes.tick_params(labelsize=8)


def _nothing(axes: Axes, panel: Document) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, defaults(panel).get("noValue", "no data"), ha="center", va="center", color="#777777")


def _lines(
    axes: Axes, panel: Document, named: Sequence[tuple[str, Series]], marks: Sequence[Mark], window: tuple[float, float]
) -> None:
    settings = defaults(panel)
    custom, unit = settings.get("custom", {}), settings.get("unit", "short")
    style = "steps-post" if custom.get("lineInterpolation") == "stepAfter" else "default"
    if custom.get("stacking", {}).get("mode") == "normal":
        times = sorted({time for _, one in named for time in one.times})
        known = [dict(zip(one.times, one.values, strict=True)) for _, one in named]
        heights = [[_number_or_0(points.get(time)) for time in times] for points in known]
        axes.stackplot([_date(time) for time in times], heights, labels=[name for name, _ in named], alpha=0.6)
    else:
        for name, one in named:
            point = "." if len(one.times) < 3 else ""
            times, values = _with_holes(one)
            axes.plot([_date(time) for time in times], values, label=name, linewidth=1.2, marker=point, drawstyle=style)
    if custom.get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
    elif "min" in settings:
        axes.set_ylim(bottom=settings["min"])
    if "max" in settings:
        axes.set_ylim(top=settings["max"])
    low, high = axes.get_ylim()
    for step in settings.get("thresholds", {}).get("steps", []):
        if step["value"] is not None and low <= step["value"] <= high:
            axes.axhline(step["value"], color=COLORS.get(step["color"], "grey"), linestyle="--", linewidth=0.9)
    for _, color, one in marks:
        for time in _beginnings(one.times):
            axes.axvline(_date(time), color=COLORS.get(color, color), linewidth=0.8, alpha=0.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    axes.grid(alpha=0.25)
    if 0 < len(named) <= LEGEND_MAX:
        axes.legend(fontsize=7, loc="upper left", framealpha=0.6)
    _time_axis(axes, window)


def _with_holes(one: Series) -> tuple[list[float], list[float]]:
    """Return a series's times and values, with a NaN where points are missing, so that no line bridges the hole."""
    step = min((later - time for time, later in pairwise(one.times)), default=0.0)
    times, values = list(one.times[:1]), list(one.values[:1])
    for (time, later), value in zip(pairwise(one.times), one.values[1:], strict=True):
        if later - time > 1.5 * step:
            times.append(time + step)
            values.append(math.nan)
        times.append(later)
        values.append(value)
    return times, values


def _beginnings(times: Sequence[float]) -> list[float]:
    """Return where runs of neighbouring times begin: an annotation is true for as long as its window is wide."""
    step = min((later - time for time, later in pairwise(times)), default=0.0)
    return [*times[:1], *(later for time, later in pairwise(times) if later - time > 1.5 * step)]


def _number_or_0(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else value


def _heatmap(axes: Axes, panel: Document, named: Sequence[tuple[str, Series]], window: tuple[float, float]) -> None:
    """Draw what fell into each bucket: the differences of what is at or below neighbouring bounds."""
    unit = panel.get("options", {}).get("yAxis", {}).get("unit") or defaults(panel).get("unit", "short")
    rows = sorted(((float(one.labels["le"].replace("+Inf", "inf")), one) for _, one in named), key=lambda row: row[0])
    times = sorted({time for _, one in rows for time in one.times})
    below = dict.fromkeys(times, 0.0)
    cells = []
    for _, one in rows:
        points = dict(zip(one.times, one.values, strict=True))
        upto = {time: max(_number_or_0(points.get(time)), below[time]) for time in times}
        cells.append([upto[time] - below[time] or math.nan for time in times])
        below = upto
    if len(times) > 1:
        step = times[1] - times[0]
        edges = [_date(time - step) for time in times] + [_date(times[-1])]
        highest = max((value for row in cells for value in row if not math.isnan(value)), default=1.0)
        norm = PowerNorm(0.5, vmin=0, vmax=highest)
        axes.pcolormesh(edges, range(len(rows) + 1), cells, cmap="Oranges", norm=norm)
    every = 1 + len(rows) // LEGEND_MAX
    places = range(1, len(rows) + 1)
    axes.set_yticks(places[::every], [shown(bound, unit) for bound, _ in rows[::every]], fontsize=7)
    _time_axis(axes, window)


def _number(axes: Axes, panel: Document, named: Sequence[tuple[str, Series]]) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    settings = defaults(panel)
    unit = settings.get("unit", "short")
    for place, (name, one) in enumerate(named[:4]):
        value = next((value for value in reversed(one.values) if not math.isnan(value)), math.nan)
        middle = 1 - (place + 0.5) / min(len(named), 4)
        size = 24 if len(named) == 1 else 13
        if "decimals" in settings:
            value = round(value, settings["decimals"]) if math.isfinite(value) else value
        text = shown(value, unit) if len(named) == 1 else f"{name}: {shown(value, unit)}"
        axes.text(0.5, middle, text, ha="center", va="center", size=size, color=color_of(panel, value))
