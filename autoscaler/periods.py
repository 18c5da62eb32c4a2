"""Times of the week in which nothing is to change: `Sat 02:00-04:00`, `Mon-Fri 07:00-09:30`, `22:00-06:00`.

A period that ends before it begins goes over midnight, and its day is the one on which it begins. Local times follow
the zone's clock: in the night when clocks go back, 02:30 comes twice, and both lie in 02:00-04:00.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
FORM = "`Sat 02:00-04:00`, `Mon-Fri 07:00-09:30` or `22:00-06:00`"

_PERIOD = re.compile(r"(?:(\w{3})(?:-(\w{3}))? )?(\d\d):(\d\d)-(\d\d):(\d\d)")


class Period(NamedTuple):
    """days: 0 is Monday. start, end: minutes of the day; end may be 1440, or before the start."""

    days: frozenset[int]
    start: int
    end: int

    def holds(self, day: int, minute: int) -> bool:
        """Tell whether a minute of a day of the week lies in it."""
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        return (day in self.days and minute >= self.start) or ((day - 1) % 7 in self.days and minute < self.end)


def period_of(text: str) -> Period:
    """Return the period that the text stands for. Raises ValueError, which names the forms."""
    match = _PERIOD.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form {FORM}")
    first, last, *clock = match.groups()
    for name in (first, last):
        if name is not None and name not in DAYS:
            raise ValueError(f"{name!r} is no day; allowed are {', '.join(DAYS)}")
    days = frozenset(range(7))
    if first is not None:
        begin = DAYS.index(first)
        count = 1 if last is None else (DAYS.index(last) - begin) % 7 + 1
        days = frozenset((begin + step) % 7 for step in range(count))
    hours, minutes = (int(clock[0]), int(clock[2])), (int(clock[1]), int(clock[3]))
    start, end = hours[0] * 60 + minutes[0], hours[1] * 60 + minutes[1]
    if max(minutes) > 59 or start >= 1440 or end > 1440:
        raise ValueError(f"{text!r}: times go from 00:00 to 24:00")
    if start == end:
        raise ValueError(f"{text!r} is empty")
    return Period(days, start, end)


def excluded(periods: tuple[tuple[str, Period], ...], zone: ZoneInfo, now_s: float) -> str | None:
    """Return the text of the first period that holds the moment (unix seconds), None if none does."""
    if not periods:
        return None
    local = datetime.fromtimestamp(now_s, zone)
    for text, period in periods:
        if period.holds(local.weekday(), local.hour * 60 + local.minute):
            return text
    return None
