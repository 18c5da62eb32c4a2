"""What `kittiwake top` shows, as lines: a pure function of what is known and of the terminal's size.

A screen never has more lines than the terminal, nor longer ones. What does not fit goes in this order: columns, by how
much they tell; the last changes and decisions; of the slices those that have least to do, each layer saying how many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from actors.commands.operations import changes, duration, size
from actors.commands.options import plural
from cluster.messages import CONNECTION_POINT, MATCHER

Document = dict[str, Any]
Style = Literal["", "bold", "dim", "head", "green", "yellow", "red"]
Segment = tuple[str, Style]

CODES: dict[Style, str] = {"bold": "1", "dim": "2", "head": "7", "green": "32", "yellow": "33", "red": "31"}
BUSY, OVERLOADED = 0.7, 0.85
"""Shares of time in use that are shown yellow and red, as in the dashboards and the alert KittiwakeSliceBusy."""
FOOTER_LEAST = 3
"""Lines that changes and decisions keep while slices compete for the room, where there are TALL lines."""
TALL = 16
GAP = "  "
HELD = ("subscriptions", "sessions")
"""Counters that are shown besides the measures."""


@dataclass(frozen=True)
class View:
    """What is known at one moment.

    at:         the time of day that is shown.
    status:     the coordinator's document, as of `kittiwake status --json`.
    operations: as of `kittiwake transitions`, oldest first.
    decisions:  the autoscaler's entries (autoscaler.controller.Entry as documents), oldest first.
    trouble:    why all this is old; "" if it is not.
    """

    at: datetime
    status: Document
    operations: Sequence[Document] = ()
    decisions: Sequence[Document] = ()
    trouble: str = ""


@dataclass(frozen=True)
class _Row:
    """One line of the table. who: the layer, or the layer and the slot. of: its measures. use: what it is ranked by."""

    layer: str
    who: str
    state: str
    pid: str
    of: Document
    is_layer: bool = False

    @property
    def use(self) -> float:
        return self.of.get("useful_share") or 0.0


@dataclass(frozen=True)
class _Column:
    """keep: the greater, the later it is left out."""

    head: str
    keep: int
    cell: Callable[[_Row], Segment]
    left: bool = False


def screen(view: View, width: int, height: int, *, color: bool = False) -> list[str]:
    """Return at most `height` lines of at most `width` columns each, with the codes of colours if asked for."""
    top = [*_summary(view, width), []]
    rows = _rows(view)
    rest = max(height - len(top) - 1, 0)
    footer = _footer(view)
    wanted = sum(len(group) + (len(group) > 1) for group in rows)
    room = max(rest - wanted, min(FOOTER_LEAST, len(footer)) if height >= TALL else 0)
    footer = footer[: min(room, rest)]
    shown = _fitting(rows, rest - len(footer))
    lines = [*top, *_table(shown, width), *footer][:height]
    return [_painted(_clipped(line, width), color) for line in lines]


# The head --------------------------------------------------------------------------------------------------------


def _summary(view: View, width: int) -> list[list[Segment]]:
    status, measures = view.status, view.status.get("measures")
    state = str(status.get("state", "unknown"))
    lost = status.get("lost", 0)
    title: list[Segment] = [
        ("kittiwake ", "bold"),
        (str(status.get("name", "")), "bold"),
        (": ", ""),
        (state, "green" if state == "serving" and not lost else "red"),
    ]
    if status.get("epoch") is not None:
        title.append((f", view {status['epoch']}", ""))
    if "sessions" in status:
        title.append((f", {plural(status['sessions'], 'client')}", ""))
    if lost:
        title.append((f", {lost} LOST", "red"))
    clock = view.at.strftime("%H:%M:%S")
    pad = width - sum(len(text) for text, _ in title) - len(clock)
    if pad > 0:
        title += [(" " * pad, ""), (clock, "dim")]
    lines = [title]
    if measures is not None:
        parts = [
            f"in {rate(_of_layer(measures, CONNECTION_POINT, 'publications_per_s'))}/s",
            f"out {rate(_of_layer(measures, CONNECTION_POINT, 'notifications_per_s'))}/s",
            f"delay {_quantiles(measures['notification_delay_ms'])}",
            f"subscribe {_quantiles(measures['subscribe_ack_ms'])}",
            f"match {_quantiles(measures['match_ms'])}",
            f"in flight {number(measures['books']['in_flight'])}",
        ]
        while len(parts) > 1 and len(GAP.join(parts)) > width:
            parts.pop()
        lines.append([(GAP.join(parts), "")])
    if view.trouble:
        lines.append([(view.trouble, "red")])
    recovery = status.get("recovery")
    if recovery is not None:
        who = ", ".join(recovery["replaced"])
        lines.append([(f"recovering {who}: {recovery['phase']}, since {duration(recovery['for_ms'])}", "red")])
        lines += [[(f"  {name}: {why}", "red")] for name, why in recovery["troubles"].items()]
    operation = status.get("operation")
    if operation is not None and operation["state"] == "running":
        what = changes(operation["former"], operation["wanted"])
        moved = f"{operation['groups_moved']} of {operation['groups_minimum']} key groups moved"
        lines.append([(f"operation {operation['number']}: {what}, {moved}", "yellow")])
    return lines


def _of_layer(measures: Document, layer: str, name: str) -> float | None:
    value: float | None = measures["layers"][layer][name]
    return value


def _quantiles(spread: Document) -> str:
    middle, most = spread["p50"], spread["p99"]
    return "-" if middle is None or most is None else f"p50 {_ms(middle)} p99 {_ms(most)}"


def _ms(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    return f"{milliseconds:.3g} ms" if milliseconds >= 1 else f"{milliseconds * 1000:.0f} µs"


def number(count: float) -> str:
    """Return a count in at most six characters: `9,999`, `12.3k`, `1.23M`."""
    for limit, factor, letter in ((9999.5, 1, ""), (999.5e3, 1e3, "k"), (999.5e6, 1e6, "M"), (999.5e9, 1e9, "G")):
        if abs(count) < limit:
            return f"{count:,.0f}" if not letter else f"{count / factor:.3g}{letter}"
    return f"{count:.1e}"


def rate(per_s: float | None) -> str:
    """Return a rate as a count; `-` if it is not known."""
    return "-" if per_s is None else number(per_s)


# The table -------------------------------------------------------------------------------------------------------


def _rows(view: View) -> list[list[_Row]]:
    """Return the slices by layer, in the order of the status."""
    groups: dict[str, list[_Row]] = {}
    for member in view.status.get("members", []):
        layer = member["layer"]
        counters = member.get("counters", {})
        measures = {name: counters.get(name) for name in HELD} | member.get("measures", {})
        who = f"{layer.replace('_', ' ')} {member['slot']}"
        row = _Row(layer, who, str(member.get("state")), str(member.get("pid", "-")), measures)
        groups.setdefault(layer, []).append(row)
    return list(groups.values())


def _whole(rows: list[_Row], shown: int) -> _Row:
    """Return the row of a layer: the busiest slice's time, and sums; what every matcher does is not summed up."""
    first = rows[0]
    measures = {}
    for name in {name for row in rows for name in row.of}:
        values = [value for value in (row.of.get(name) for row in rows) if value is not None]
        everywhere = name == "useful_share" or (name == "publications_per_s" and first.layer == MATCHER)
        measures[name] = (max(values) if everywhere else sum(values)) if values else None
    count = len(rows)
    who = f"{first.layer.replace('_', ' ')}s {count}" + (f", {shown} shown" if shown < count else "")
    worst = next((row.state for row in rows if row.state == "lost"), None)
    states = {row.state for row in rows}
    state = worst or (states.pop() if len(states) == 1 else "changing")
    return _Row(first.layer, who, state, "", measures, is_layer=True)


def _fitting(groups: list[list[_Row]], room: int) -> list[_Row]:
    """Return rows for so many lines: all of them, or the layers' and the busiest slices'."""
    needed = sum(len(group) + (len(group) > 1) for group in groups)
    busiest = sorted((row for group in groups for row in group), key=lambda row: (row.state != "lost", -row.use))
    chosen = {id(row) for row in busiest}
    if needed > room:
        singles = [row for group in groups if len(group) == 1 for row in group]
        left = max(room - len(groups), 0)
        chosen = {id(row) for row in singles}
        chosen |= {id(row) for row in [row for row in busiest if id(row) not in chosen][:left]}
    rows: list[_Row] = []
    for group in groups:
        shown = [row for row in group if id(row) in chosen]
        if len(group) > 1:
            rows.append(_whole(group, len(shown)))
        rows += shown
    return rows[:room] if room > 0 else []


def _bar(share: float | None, width: int = 10) -> str:
    filled = round(min(max(share or 0.0, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def _use_style(row: _Row) -> Style:
    if row.use > OVERLOADED:
        return "red"
    return "yellow" if row.use > BUSY else ""


def _state(row: _Row) -> Segment:
    return row.state, "" if row.state == "serving" else ("red" if row.state == "lost" else "yellow")


def _share(row: _Row) -> Segment:
    share = row.of.get("useful_share")
    return "-" if share is None else f"{share:.0%}", _use_style(row)


def _counted(name: str) -> Callable[[_Row], Segment]:
    def cell(row: _Row) -> Segment:
        value = row.of.get(name)
        return "" if value is None else number(value), ""

    return cell


def _memory(row: _Row) -> Segment:
    value = row.of.get("resident_bytes")
    return "" if not value else size(value), ""


COLUMNS = (
    _Column("SLICE", 9, lambda row: (row.who if row.is_layer else f" {row.who}", "bold" if row.is_layer else ""), True),
    _Column("STATE", 6, _state, True),
    _Column("IN USE", 8, _share),
    _Column("", 3, lambda row: (_bar(row.of.get("useful_share")), _use_style(row)), True),
    _Column("PUBL/S", 7, _counted("publications_per_s")),
    _Column("NOTIF/S", 4, _counted("notifications_per_s")),
    _Column("BACKLOG", 6, _counted("backlog_messages")),
    _Column("SUBSCR", 5, _counted("subscriptions")),
    _Column("CLIENTS", 4, _counted("sessions")),
    _Column("MEMORY", 3, _memory),
    _Column("PID", 1, lambda row: (row.pid, "dim")),
)


def _table(rows: Sequence[_Row], width: int) -> list[list[Segment]]:
    cells = [[column.cell(row) for column in COLUMNS] for row in rows]
    widths = [max([len(column.head), *(len(row[place][0]) for row in cells)]) for place, column in enumerate(COLUMNS)]
    places = list(range(len(COLUMNS)))
    while len(places) > 1 and sum(widths[place] + len(GAP) for place in places) - len(GAP) > width:
        places.remove(min(places, key=lambda place: COLUMNS[place].keep))

    def line(texts: list[Segment]) -> list[Segment]:
        made: list[Segment] = []
        for place in places:
            text, style = texts[place]
            padded = text.ljust(widths[place]) if COLUMNS[place].left else text.rjust(widths[place])
            made += [(padded, style), (GAP, "")]
        return made[:-1]

    head = "".join(text for text, _ in line([(column.head, "") for column in COLUMNS]))
    return [[(head.ljust(width), "head")], *(line(row) for row in cells)]


# The foot --------------------------------------------------------------------------------------------------------


@dataclass
class _Foot:
    lines: list[list[Segment]] = field(default_factory=list)

    def part(self, title: str, texts: list[Segment]) -> None:
        if texts:
            self.lines += [[], [(title, "bold")], *([text] for text in texts)]


def _footer(view: View) -> list[list[Segment]]:
    foot = _Foot()
    foot.part("decisions", [_decision(entry) for entry in reversed(view.decisions)])
    foot.part("changes", [_operation(operation) for operation in reversed(view.operations)])
    return foot.lines


def _decision(entry: Document) -> Segment:
    """Return a line such as `12:31:05 matcher 2 -> 3, done`."""
    decision = entry["decision"]
    at = datetime.fromtimestamp(decision["at_s"]).strftime("%H:%M:%S")
    sizes = {one["layer"]: one["size"] for one in decision.get("layers", ())}
    steps = [f"{layer} {sizes.get(layer, '?')} -> {target}" for layer, target in decision.get("targets", {}).items()]
    if not steps:
        return f" {at} {'held: ' + decision['held'] if decision.get('held') else 'stays'}", "dim"
    outcome = ", ".join(filter(None, [*steps, entry.get("outcome", ""), entry.get("reason", "")]))
    return f" {at} {outcome}", ""


def _operation(operation: Document) -> Segment:
    state = operation["state"]
    text = f" {operation['number']} {changes(operation['former'], operation['wanted'])}: {state}"
    text += f" in {duration(operation['duration_ms'])}" if state != "running" else ""
    return text + (f"; {operation['reason']}" if operation["reason"] else ""), "red" if state == "aborted" else ""


# To the terminal -------------------------------------------------------------------------------------------------


def _clipped(line: list[Segment], width: int) -> list[Segment]:
    """Cut a line off at the width, with a mark where something is missing."""
    if sum(len(text) for text, _ in line) <= width:
        return line
    cut: list[Segment] = []
    left = max(width - 1, 0)
    for text, style in line:
        cut.append((text[:left], style))
        left -= len(text[:left])
    return [*cut, ("…"[:width], "dim")]


def _painted(line: list[Segment], color: bool) -> str:
    if not color:
        return "".join(text for text, _ in line).rstrip()
    return "".join(f"\x1b[{CODES[style]}m{text}\x1b[0m" if style in CODES and text else text for text, style in line)
