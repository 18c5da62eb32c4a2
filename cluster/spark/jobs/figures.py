"""The report's pictures: facts in, SVG out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import groupby

from cluster.spark.jobs.facts import Compliance, Day, Delay, Facts, Phase, Station
from cluster.spark.jobs.svg import Scale, band, line, number, picture, powers, ramp, tag, text, ticks, title

NAMES = {
    "no2": "NO₂",
    "no": "NO",
    "nox": "NOₓ",
    "o3": "O₃",
    "so2": "SO₂",
    "co": "CO",
    "pm10": "PM10",
    "pm25": "PM2.5",
}
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
KM_PER_DEGREE = 111.195
"""Of latitude, on a sphere of 6,371 km."""

GRADES = (
    (0, "kept", "all kept"),
    (1, "some", "1 exceeded"),
    (2, "more", "2 exceeded"),
    (3, "most", "3 or more exceeded"),
)


def name_of(quantity: str) -> str:
    """Return what a quantity is called: NO₂, total hydrocarbons."""
    return NAMES.get(quantity, quantity.replace("_", " "))


def exceeded(compliance: Sequence[Compliance], set_: str) -> dict[str, list[Compliance]]:
    """Return by station what was not kept of a set of limits; a station with all kept is not there."""
    found: dict[str, list[Compliance]] = {}
    for one in compliance:
        if one.set == set_ and not one.kept:
            found.setdefault(one.station, []).append(one)
    return found


def grade(count: int) -> tuple[int, str, str]:
    """Return the grade of a station with so many limits exceeded."""
    return GRADES[min(count, len(GRADES) - 1)]


def station_map(facts: Facts, set_: str) -> str:
    """Return the stations where they lie, coloured by how many limits of a set were exceeded, with a scale in km."""
    placed = [(one, one.lat, one.lon) for one in facts.stations if one.lat is not None and one.lon is not None]
    if not placed:
        return ""
    over = exceeded(facts.compliance, set_)
    judged = {one.station for one in facts.compliance if one.set == set_}
    width, height, margin = 420.0, 420.0, 30.0
    south, north = min(lat for _, lat, _ in placed), max(lat for _, lat, _ in placed)
    west, east = min(lon for _, _, lon in placed), max(lon for _, _, lon in placed)
    middle, centre = (south + north) / 2, (west + east) / 2
    narrow = math.cos(math.radians(middle))
    span_km = max((north - south) * KM_PER_DEGREE, (east - west) * KM_PER_DEGREE * narrow, 0.5)
    per_km = (width - 2 * margin) / span_km
    marks = []
    # Those with the most exceedances last, so that they lie on top.
    for one, lat, lon in sorted(placed, key=lambda each: len(over.get(each[0].name, ()))):
        x = round(width / 2 + (lon - centre) * KM_PER_DEGREE * narrow * per_km, 2)
        y = round(height / 2 - (lat - middle) * KM_PER_DEGREE * per_km, 2)
        wrong = over.get(one.name, [])
        kind = grade(len(wrong))[1] if one.name in judged else "none"
        words = _about(one, wrong, one.name in judged)
        circle = tag("circle", cx=x, cy=y, r=11.5, class_=f"station {kind}")
        count = text(x, y + 4.5, str(len(wrong)) if one.name in judged else "·", class_=f"on {kind}", anchor="middle")
        marks.append(tag("g", title(words), circle, count))
    scale_km = next(
        each for each in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if each >= span_km / 8
    )
    x0, x1, y0 = margin, margin + scale_km * per_km, height - 12
    bar = tag("path", d=f"M{x0:g},{y0 - 4:g}V{y0:g}H{x1:g}V{y0 - 4:g}", class_="axis")
    scale = bar + text(x1 + 6, y0, f"{scale_km:g} km", class_="tick")
    north_mark = tag("path", d=f"M{width - 22:g},36l5,-14l5,14z", class_="north") + text(
        width - 17, 50, "N", class_="tick", anchor="middle"
    )
    return picture(width, height, f"Map of the stations by limits of {set_} exceeded", *marks, scale, north_mark)


def _about(one: Station, wrong: Sequence[Compliance], judged: bool) -> str:
    if not judged:
        return f"{one.name}: nothing measured here has a limit"
    if not wrong:
        return f"{one.name}: all limits kept"
    return "\n".join([f"{one.name}:", *(what_of(each) for each in wrong)])


def what_of(one: Compliance) -> str:
    """Return in words what was exceeded."""
    if one.averaging == "year":
        return f"{one.limit}: mean {number(one.peak)} {one.unit}, limit {number(one.value)}"
    times = f"{one.exceedances} times" if one.exceedances != 1 else "once"
    return (
        f"{one.limit}: {times} above {number(one.value)} {one.unit}, allowed {one.allowed}; highest {number(one.peak)}"
    )


def series_plot(facts: Facts, quantity: str) -> str:
    """Return the daily means over time: the stations' mean between the lowest and the highest, and limits for a day."""
    days = facts.days[quantity]
    width, height, left, right, top, bottom = 560.0, 190.0, 46.0, 12.0, 12.0, 24.0
    unit = facts.units.get(quantity, "")
    limits = sorted(
        {(one.value, one.set) for one in facts.limits.limits if one.quantity == quantity and one.averaging == "day"}
    )
    peak = max(day.highest for day in days)
    low = min(0.0, min(day.lowest for day in days))
    high = max(peak * 1.05, low + 1e-9)
    x = Scale(days[0].day.toordinal(), max(days[-1].day.toordinal(), days[0].day.toordinal() + 1), left, width - right)
    y = Scale(low, high, height - bottom, top)
    parts = _y_axis(y, ticks(low, high, 4), left, width - right)
    parts += [
        tag("line", x1=each, x2=each, y1=height - bottom, y2=height - bottom + 4, class_="axis")
        + text(each, height - 6, words, class_="tick", anchor="middle")
        for each, words in _day_ticks(days[0].day, days[-1].day, x)
    ]
    for run in _runs(days):
        parts.append(band([(x(day.day.toordinal()), y(day.lowest), y(day.highest)) for day in run], "band"))
        parts.append(line([(x(day.day.toordinal()), y(day.mean)) for day in run], "curve"))
    above = -math.inf
    for value, names in groupby(reversed(limits), key=lambda each: each[0]):
        if value <= high:
            label, at = f"{number(value)}: {', '.join(sorted(each for _, each in names))}", y(value)
            beside = at - 3 if at - above > 14 else at + 10  # below its line where the next one is close
            above = at
            parts.append(tag("line", title(label), x1=left, x2=width - right, y1=at, y2=at, class_="limit"))
            parts.append(text(width - right, beside, label, class_="tick limit-name", anchor="end"))
    if len(days) <= 400:
        step = max(2.0, (width - left - right) / max(len(days), 1))
        parts += [
            tag(
                "rect",
                title(f"{day.day}: mean {number(day.mean)}, {number(day.lowest)} to {number(day.highest)} {unit}"),
                x=round(x(day.day.toordinal()) - step / 2, 2),
                y=top,
                width=round(step, 2),
                height=height - top - bottom,
                class_="hover",
            )
            for day in days
        ]
    name = f"{name_of(quantity)}, daily means in {unit or 'its own unit'}, {days[0].day} to {days[-1].day}"
    return picture(width, height, name, *parts)


def _runs(days: Sequence[Day]) -> list[list[Day]]:
    """Return the days in stretches without a gap."""
    keyed = groupby(enumerate(days), key=lambda pair: pair[1].day.toordinal() - pair[0])
    return [[day for _, day in run] for _, run in keyed]


def _day_ticks(first: date, last: date, x: Scale) -> list[tuple[float, str]]:
    length = (last - first).days
    if length > 62:
        months = [date(year, month, 1) for year in range(first.year, last.year + 1) for month in range(1, 13)]
        kept = [day for day in months if first <= day <= last]
        kept = kept[:: max(1, len(kept) // 12)]
        return [(x(day.toordinal()), f"{day:%b}" if day.month > 1 else f"{day:%Y}") for day in kept]
    step = max(1, length // 7)
    return [
        (x((first + timedelta(each)).toordinal()), f"{first + timedelta(each):%d %b}")
        for each in range(0, length + 1, step)
    ]


def _y_axis(y: Scale, at: Sequence[float], left: float, right: float) -> list[str]:
    return [
        tag("line", x1=left, x2=right, y1=y(each), y2=y(each), class_="grid")
        + text(left - 6, y(each) + 3.5, number(each), class_="tick", anchor="end")
        for each in at
    ]


def heat_map(facts: Facts, quantity: str) -> str:
    """Return the mean of each hour of each weekday as a colour, with the scale beside it."""
    means = facts.hours[quantity]
    unit = facts.units.get(quantity, "")
    low, high = min(means.values()), max(means.values())
    cell, left, top = 20.0, 34.0, 8.0
    width, height = left + 24 * cell + 66, top + 7 * cell + 22
    parts = []
    for weekday, name in enumerate(WEEKDAYS):
        parts.append(text(left - 6, top + weekday * cell + 14, name, class_="tick", anchor="end"))
        for hour in range(24):
            mean = means.get((weekday, hour))
            words = f"{name} {hour:02}:00 to {hour + 1:02}:00: " + (
                "no reading" if mean is None else f"{number(mean)} {unit}"
            )
            share = 0.5 if high == low else ((mean or low) - low) / (high - low)
            fill = {"class_": "empty"} if mean is None else {"fill": ramp(share)}
            parts.append(
                tag(
                    "rect",
                    title(words),
                    x=left + hour * cell,
                    y=top + weekday * cell,
                    width=cell - 1,
                    height=cell - 1,
                    **fill,
                )
            )
    parts += [
        text(left + hour * cell + cell / 2, height - 8, f"{hour:02}", class_="tick", anchor="middle")
        for hour in range(0, 24, 3)
    ]
    bar_x, steps = left + 24 * cell + 10, 28
    step = 7 * cell / steps
    parts += [
        tag(
            "rect",
            x=bar_x,
            y=round(top + each * step, 2),
            width=10,
            height=round(step + 0.5, 2),
            fill=ramp(1 - each / (steps - 1)),
        )
        for each in range(steps)
    ]
    parts.append(text(bar_x + 14, top + 9, number(high), class_="tick"))
    parts.append(text(bar_x + 14, top + 7 * cell, number(low), class_="tick"))
    return picture(width, height, f"{name_of(quantity)} by hour and weekday, mean in {unit or 'its own unit'}", *parts)


def delay_plot(facts: Facts) -> str:
    """Return the percentiles of the delay over time, on a logarithmic scale, with the transitions marked."""
    rows = facts.delays
    if not rows:
        return ""
    width, height, left, right, top, bottom = 1140.0, 240.0, 60.0, 14.0, 26.0, 26.0
    values = [value for row in rows for value in (row.p50, row.p95, row.p99) if value > 0] or [1.0]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.0001))
    first, last = rows[0].start, rows[-1].start + timedelta(seconds=facts.bucket_s)
    x = Scale(0.0, (last - first).total_seconds(), left, width - right)
    y = Scale(low, max(high, low * 10), height - bottom, top, logarithmic=True)
    parts = _y_axis(y, powers(low, max(high, low * 10)), left, width - right)
    half = facts.bucket_s / 2

    def at(time: datetime) -> float:
        return x(min(max((time - first).total_seconds(), 0.0), (last - first).total_seconds()))

    for one in facts.phases:
        if one.phase == "during":
            start, end = at(one.start), at(one.end)
            words = f"{one.label}: {one.start:%H:%M:%S} to {one.end:%H:%M:%S} UTC"
            parts.append(
                tag(
                    "rect",
                    title(words),
                    x=start,
                    y=top,
                    width=max(2.0, round(end - start, 2)),
                    height=height - top - bottom,
                    class_="transition",
                )
            )
            parts.append(text((start + end) / 2, top - 8, str(one.number), class_="tick", anchor="middle"))
    for kind in ("p50", "p95", "p99"):
        points = [(x((row.start - first).total_seconds() + half), y(max(getattr(row, kind), low))) for row in rows]
        parts.append(line(points, f"curve {kind}") if len(points) > 1 else _dots(points, kind))
    step = max(2.0, x(facts.bucket_s) - x(0))
    parts += [
        tag(
            "rect",
            title(_delay_words(row)),
            x=x((row.start - first).total_seconds()),
            y=top,
            width=step,
            height=height - top - bottom,
            class_="hover",
        )
        for row in rows
    ]
    total = (last - first).total_seconds()
    for each in ticks(0, total, 8):
        words = (
            f"{first + timedelta(seconds=each):%H:%M:%S}"
            if total < 172_800
            else f"{first + timedelta(seconds=each):%d %b}"
        )
        parts.append(text(x(each), height - 8, words, class_="tick", anchor="middle"))
    return picture(width, height, "Delay from accepted to released over time, in milliseconds", *parts)


def _dots(points: Sequence[tuple[float, float]], kind: str) -> str:
    return "".join(tag("circle", cx=px, cy=py, r=3, class_=f"dot {kind}") for px, py in points)


def _delay_words(row: Delay) -> str:
    return (
        f"{row.start:%Y-%m-%d %H:%M:%S} UTC: {row.publications:,} publications; "
        f"p50 {number(row.p50)}, p95 {number(row.p95)}, p99 {number(row.p99)}, longest {number(row.max)} ms"
    )


def transition_rows(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Return the three phases of each transition."""
    return [list(group) for _, group in groupby(phases, key=lambda one: one.number)]
