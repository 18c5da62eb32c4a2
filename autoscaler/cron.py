"""Five fields of cron, for times at which a schedule begins: `minute hour day-of-month month day-of-week`.

A field is `*`, a number, a range `1-5`, any of these with a step `*/15`, `8-18/2`, or several with commas. Months and
days may be named (`jan`, `mon`; any case); Sunday is 0 or 7. As in cron itself a day counts if its day of the month
*or* its day of the week is named, when both fields are restricted, and if both fit otherwise. There are no seconds, no
`@daily`, no `L`, `W` or `#`: an error says so.

Times are of a timezone's wall clock. One that a clock change skips begins when it would have been without the change,
one that comes twice begins the first time only.

Own code, as this is all that a schedule needs, and each error is to name the field; croniter has changed hands lately.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo

from cluster.errors import ConfigError

DAY_S: Final = 86_400

MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))

PART: Final = re.compile(r"(\*|[0-9a-z]+(?:-[0-9a-z]+)?)(?:/([0-9]+))?")


@dataclass(frozen=True)
class Cron:
    """A parsed entry; every field as the set of values that it allows. either: both kinds of day are restricted."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def on(self, day: datetime.date) -> bool:
        """Tell whether there is a time on this day."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either else of_month and of_week

    def last(self, until_s: float, after_s: float, zone: ZoneInfo) -> float | None:
        """Return the last time in (after_s, until_s], in unix seconds; None if there is none."""
        day = datetime.datetime.fromtimestamp(until_s, zone).date()
        # A time of this day may be of the day before in unix seconds, by a clock change; two days more cover that.
        for _ in range(int((until_s - after_s) // DAY_S) + 3):
            if self.on(day):
                for hour in reversed(self.hours):
                    for minute in reversed(self.minutes):
                        moment = datetime.datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).timestamp()
                        if after_s < moment <= until_s:
                            return moment
            if day == datetime.date.min:
                break
            day -= datetime.timedelta(days=1)
        return None


def parse_cron(text: str) -> Cron:
    """Return the entry that a text says. Raises: ConfigError, which names the text, the field and what it allows."""
    words = text.lower().split()
    if text.strip().startswith("@"):
        raise ConfigError(f"cron {text!r}: names such as @daily are not known; write five fields, `0 0 * * *`")
    if len(words) != len(FIELDS):
        names = ", ".join(name for name, _, _ in FIELDS)
        raise ConfigError(f"cron {text!r}: {len(words)} fields, expected are 5: {names}")
    sets = [_values(text, word, *field) for word, field in zip(words, FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = sets
    entry = Cron(
        text,
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        not words[2].startswith("*") and not words[4].startswith("*"),
    )
    if not entry.either and not any(entry.on(day) for day in _leap_years()):
        raise ConfigError(f"cron {text!r}: no year has such a day")
    return entry


def _leap_years() -> list[datetime.date]:
    """All days of 28 years: each date falls on each day of the week in them."""
    first = datetime.date(2000, 1, 1)
    return [first + datetime.timedelta(days=count) for count in range(28 * 366)]


def _values(text: str, word: str, name: str, least: int, greatest: int) -> set[int]:
    found: set[int] = set()
    for part in word.split(","):
        match = PART.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"cron {text!r}: {name}: {part!r}, allowed are * and {least} to {greatest}, "
                "ranges 1-5, steps */15 and lists 1,3"
            )
        span, step_text = match.groups()
        step = 1 if step_text is None else int(step_text)
        if step < 1:
            raise ConfigError(f"cron {text!r}: {name}: {part!r}, a step is 1 or more")
        if span == "*":
            first, last = least, greatest
        else:
            ends = [_number(text, end, name, least, greatest) for end in span.split("-")]
            first, last = ends[0], ends[-1]
            if len(ends) == 1 and step_text is not None:
                last = greatest
            if name == "day of week" and last < first and last == 0:
                last = 7
            if last < first:
                raise ConfigError(f"cron {text!r}: {name}: {part!r} ends before it begins")
        found.update(range(first, last + 1, step))
    return found


def _number(text: str, word: str, name: str, least: int, greatest: int) -> int:
    names = MONTHS if name == "month" else DAYS if name == "day of week" else ()
    if word in names:
        return names.index(word) + least
    if not word.isdecimal() or not least <= int(word) <= greatest:
        named = f" or {names[0]} to {names[-1]}" if names else ""
        raise ConfigError(f"cron {text!r}: {name}: {word!r}, allowed is {least} to {greatest}{named}")
    return int(word)
