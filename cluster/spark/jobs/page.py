"""The report as one HTML page: facts in, text out. Nothing on it is fetched: no script, no font, no picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from cluster.spark.jobs import figures
from cluster.spark.jobs.facts import Compliance, Facts, Phase, length_of
from cluster.spark.jobs.figures import GRADES, name_of
from cluster.spark.jobs.limits import Limit
from cluster.spark.jobs.svg import number

STYLE = Path(__file__).with_name("report.css")
FIRST = ("no2", "o3", "pm10", "pm25", "so2", "co", "no", "nox", "benzene")
"""The order of quantities; others follow by name."""

AVERAGINGS = {"hour": "hour", "eight_hours": "8 hours, day's highest", "day": "day", "year": "year"}
HEAT_MAPS = 4

Cell = tuple[str, str]
"""A class ("" or "n", for numbers) and what is in the cell, as HTML."""


def page(facts: Facts, title: str) -> str:
    """Return the page."""
    sections = (
        ("summary", "At a glance", _summary(facts)),
        ("map", "Where limits were exceeded", _maps(facts)),
        ("limits", "Limit values", _limits(facts) + _episodes(facts)),
        ("series", "Over time", _series(facts)),
        ("week", "Hour by weekday", _heat_maps(facts)),
        ("top", "The highest readings", _top(facts)),
        ("delay", "Delay in the cluster", _delay(facts)),
    )
    shown = [(key, escape(heading), body) for key, heading, body in sections if body]
    links = "".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in shown)
    bodies = "".join(
        f'<section id="{key}" aria-labelledby="{key}-heading"><h2 id="{key}-heading">{heading}</h2>{body}</section>'
        for key, heading, body in shown
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{_subtitle(facts)}</p><nav>{links}</nav></header><main>{bodies}</main>"
        "<footer>Made by <code>kittiwake analyse report</code>. Means of too few hours are left out; "
        "<code>limits.yaml</code> names the sources of the limit values.</footer></body></html>\n"
    )


def ordered(quantities: Iterable[str]) -> list[str]:
    """Return quantities in the order of the page."""
    return sorted(quantities, key=lambda each: (FIRST.index(each) if each in FIRST else len(FIRST), each))


def table(head: Sequence[Cell], rows: Iterable[str], *, key: str = "", caption: str = "") -> str:
    """Return a table that scrolls sideways where it is too wide; rows are whole elements."""
    names = "".join(f'<th scope="col"{_class(class_)}>{escape(words)}</th>' for class_, words in head)
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    own = f' id="{key}"' if key else ""
    body = f"<thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table{own}>{said}{body}</table></div>'


def row(*cells: Cell, first: str = "") -> str:
    """Return a row of a table; first: the cell that names it, as HTML."""
    inside = "".join(f"<td{_class(class_)}>{html}</td>" for class_, html in cells)
    return f"<tr>{first}{inside}</tr>"


def _head(words: str) -> str:
    return f'<th scope="row">{escape(words)}</th>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _with_unit(facts: Facts, quantity: str) -> str:
    unit = facts.units.get(quantity)
    return f"{name_of(quantity)}, {unit}" if unit else name_of(quantity)


def _subtitle(facts: Facts) -> str:
    if facts.first is None or facts.last is None:
        return "no readings"
    stations = len(facts.stations) + facts.stations_left_out
    span = f"{facts.first:%d %B %Y, %H:%M} to {facts.last:%d %B %Y, %H:%M} ({escape(facts.timezone)})"
    return f"{facts.readings:,} readings of {stations} stations, {span}"


def _summary(facts: Facts) -> str:
    stations = len(facts.stations) + facts.stations_left_out
    cards = [
        ("Readings", f"{facts.readings:,}", f"over {length_of(facts).days:,} days"),
        ("Stations", f"{stations}", f"{len(facts.quantities)} quantities"),
    ]
    for each in _sets(facts):
        wrong = figures.exceeded(facts.compliance, each)
        judged = {one.station for one in facts.compliance if one.set == each}
        cards.append((each, f"{len(wrong)} of {len(judged)}", "stations with a limit exceeded"))
    if facts.summary is not None:
        said = facts.summary
        rate = f"{said.publications_per_second:,.0f} a second over {said.seconds:,.0f} s"
        share = f"{100 * said.matched_share:.3g} % matched, by {said.subscriptions_seen:,} subscriptions"
        cards.append(("Publications", f"{said.publications:,}", rate))
        cards.append(("Matches per publication", number(said.matches_per_publication.mean), share))
    if facts.delays:
        longest = f"longest {number(max(one.max for one in facts.delays))} ms"
        cards.append(("Delay in the cluster, median", f"{number(_median(facts))} ms", longest))
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong><span>{escape(words)}</span></dd></div>"
        for name, value, words in cards
    )
    return f'<dl class="cards">{shown}</dl>'


def _median(facts: Facts) -> float:
    """Return the median of the buckets' medians, each as heavy as its publications."""
    rows = sorted((one.p50, one.publications) for one in facts.delays)
    half = sum(weight for _, weight in rows) / 2
    for value, weight in rows:
        half -= weight
        if half <= 0:
            return value
    return rows[-1][0]


def _sets(facts: Facts) -> list[str]:
    there = {one.set for one in facts.compliance}
    return [each for each in dict.fromkeys(limit.set for limit in facts.limits.limits) if each in there]


def _maps(facts: Facts) -> str:
    drawn = []
    for each in _sets(facts):
        picture = figures.station_map(facts, each)
        if picture:
            drawn.append(_figure(f"map-{_key(each)}", picture, each))
    if not drawn:
        return ""
    keys = "".join(f'<span><i class="dot {kind}"></i>{words}</span>' for _, kind, words in GRADES)
    left_out = facts.stations_left_out
    note = f"<p>{left_out} stations with fewer readings are not drawn.</p>" if left_out else ""
    return (
        "<p>A circle is a station, its number how many limits of the list were exceeded. Point at it for details.</p>"
        f'<p class="legend">{keys}<span><i class="dot none"></i>no limit applies</span></p>'
        f'<div class="maps">{"".join(drawn)}</div>{note}'
        f"<details><summary>Station by station</summary>{_station_table(facts)}</details>"
    )


def _station_table(facts: Facts) -> str:
    sets = _sets(facts)
    wrong = {each: figures.exceeded(facts.compliance, each) for each in sets}
    rows = []
    for one in facts.stations:
        words = ["<br>".join(escape(figures.what_of(each)) for each in wrong[set_].get(one.name, ())) for set_ in sets]
        cells = [("", each or "–") for each in words]
        rows.append(row(("n", f"{one.readings:,}"), *cells, first=_head(one.name)))
    return table([("", "Station"), ("n", "Readings"), *(("", each) for each in sets)], rows)


def _limits(facts: Facts) -> str:
    found: dict[str, list[Compliance]] = {}
    for one in facts.compliance:
        found.setdefault(one.limit, []).append(one)
    rows = [_limit_row(limit, found[limit.name]) for limit in facts.limits.limits if limit.name in found]
    head = [("", "Limit"), ("", "Mean over"), ("n", "Value"), ("", "Verdict"), ("", "Worst station")]
    head += [("n", "Times there"), ("n", "Time above there"), ("n", "Highest mean")]
    return table(head, rows) if rows else ""


def _limit_row(limit: Limit, found: Sequence[Compliance]) -> str:
    worst = max(found, key=lambda one: (one.exceedances, one.peak))
    broken = {one.station for one in found if not one.kept}
    yearly = limit.averaging == "year"
    if broken:
        verdict, kind = f"exceeded at {len(broken)} of {len({one.station for one in found})}", "bad"
    elif not any(one.complete for one in found):
        verdict, kind = ("year incomplete" if yearly else "kept so far"), "unknown"
    else:
        verdict, kind = "kept", "good"
    times = "–" if yearly else f"{worst.exceedances:,} of {limit.allowed} allowed"
    above = f"{worst.hours_above:,} h" if worst.hours_above and not yearly else "–"
    return row(
        ("", AVERAGINGS[limit.averaging]),
        ("n", f"{number(limit.value)} {escape(limit.unit)}"),
        ("", f'<span class="verdict {kind}">{verdict}</span>'),
        ("", escape(worst.station)),
        ("n", times),
        ("n", above),
        ("n", number(worst.peak)),
        first=_head(limit.name),
    )


def _episodes(facts: Facts) -> str:
    if not facts.episodes:
        return ""
    rows = [
        row(
            ("", escape(one.limit)),
            ("", f"{one.start:%Y-%m-%d %H:%M}"),
            ("n", f"{one.hours:,} h"),
            ("n", f"{number(one.peak)} {escape(one.unit)}"),
            first=_head(one.station),
        )
        for one in facts.episodes
    ]
    head = [("", "Station"), ("", "Limit"), ("", "From (UTC)"), ("n", "Without a break"), ("n", "Highest mean")]
    return f"<h3>Longest times above a limit</h3>{table(head, rows, key='episodes')}"


def _series(facts: Facts) -> str:
    drawn = [
        _figure(f"series-{_key(quantity)}", figures.series_plot(facts, quantity), _with_unit(facts, quantity))
        for quantity in ordered(facts.days)
    ]
    if not drawn:
        return ""
    return (
        "<p>Daily means: the line is the mean of all stations, the band reaches from the lowest station to the "
        f'highest. Dashed: limit values for a day.</p><div class="plots">{"".join(drawn)}</div>'
    )


def _heat_maps(facts: Facts) -> str:
    drawn = [
        _figure(f"week-{_key(quantity)}", figures.heat_map(facts, quantity), _with_unit(facts, quantity))
        for quantity in ordered(facts.hours)[:HEAT_MAPS]
    ]
    if not drawn:
        return ""
    words = f"Mean of each hour of the day ({escape(facts.timezone)}), by weekday, over all stations."
    return f'<p>{words}</p><div class="plots">{"".join(drawn)}</div>'


def _top(facts: Facts) -> str:
    head = [("n", "Rank"), ("n", "Value"), ("", "Station"), ("n", "Time")]
    tables = []
    for quantity in ordered(facts.highest):
        rows = [
            row(
                ("n", str(one.rank)),
                ("n", number(one.value, 4)),
                ("", escape(one.station)),
                ("n", f"{one.time:%Y-%m-%d %H:%M}"),
            )
            for one in facts.highest[quantity]
        ]
        tables.append(table(head, rows, key=f"top-{_key(quantity)}", caption=_with_unit(facts, quantity)))
    return f'<div class="tops">{"".join(tables)}</div>' if tables else ""


def _delay(facts: Facts) -> str:
    if not facts.delays:
        return ""
    strokes = (("p50", "median"), ("p95", "95 %"), ("p99", "99 %"))
    keys = "".join(f'<span><i class="stroke {kind}"></i>{words}</span>' for kind, words in strokes)
    caption = f"Milliseconds from accepted to released, by {_width(facts.bucket_s)} (UTC)"
    return (
        f'<p class="legend">{keys}<span><i class="block"></i>transition</span></p>'
        f"{_figure('delay-over-time', figures.delay_plot(facts), caption)}{_transitions(facts)}"
    )


def _transitions(facts: Facts) -> str:
    groups = figures.transition_rows(facts.phases)
    if not groups:
        epoch = f"epoch {facts.epochs[0]}" if facts.epochs else "one epoch"
        return f'<p id="transitions">No transition: everything was released in {epoch}.</p>'
    rows = []
    for group in groups:
        name = f"{group[0].number}. {escape(group[0].label)}"
        lead = f'<th scope="rowgroup" rowspan="{len(group)}">{name}</th>'
        rows += [row(*_phase(one), first="" if place else lead) for place, one in enumerate(group)]
    head = [("", "Transition"), ("", "Phase"), ("", "From (UTC)"), ("n", "Publications")]
    head += [("n", "p50, ms"), ("n", "p95, ms"), ("n", "p99, ms"), ("n", "longest, ms")]
    return f"<h3>Before, during and after each transition</h3>{table(head, rows, key='transitions')}"


def _phase(one: Phase) -> list[Cell]:
    values = [("n", "–" if each is None else number(each)) for each in (one.p50, one.p95, one.p99, one.max)]
    return [("", one.phase), ("", f"{one.start:%H:%M:%S}"), ("n", f"{one.publications:,}"), *values]


def _width(seconds: int) -> str:
    named = {1: "second", 60: "minute", 3_600: "hour", 86_400: "day"}
    return named.get(seconds) or (f"{seconds} seconds" if seconds < 60 else f"{seconds // 60} minutes")


def _figure(key: str, picture: str, caption: str) -> str:
    return f'<figure id="{key}"><figcaption>{escape(caption)}</figcaption>{picture}</figure>'


def _key(words: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in words.lower())
