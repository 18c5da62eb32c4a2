"""Excluded periods: days, times over midnight, time zones."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from autoscaler.periods import excluded, period_of

MADRID = ZoneInfo("Europe/Madrid")


def at(text: str, zone: ZoneInfo = MADRID) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("period", "inside", "outside"),
    [
        ("Sat 02:00-04:00", ["2026-11-28 02:00", "2026-11-28 03:59"], ["2026-11-28 04:00", "2026-11-27 03:00"]),
        ("Mon-Fri 07:00-09:30", ["2026-11-27 09:29", "2026-11-23 07:00"], ["2026-11-28 08:00", "2026-11-23 06:59"]),
        ("Sat-Mon 00:00-24:00", ["2026-11-28 00:00", "2026-11-30 23:59"], ["2026-12-01 00:00", "2026-11-27 23:59"]),
        ("22:00-06:00", ["2026-11-28 22:00", "2026-11-28 05:59"], ["2026-11-28 06:00", "2026-11-28 21:59"]),
        ("Fri 22:00-06:00", ["2026-11-27 23:00", "2026-11-28 05:59"], ["2026-11-27 05:00", "2026-11-28 23:00"]),
        ("Sun 23:00-01:00", ["2026-11-30 00:30"], ["2026-11-29 00:30"]),
    ],
)
def test_a_period_holds_its_times(period: str, inside: list[str], outside: list[str]) -> None:
    periods = ((period, period_of(period)),)
    assert [excluded(periods, MADRID, at(text)) for text in inside] == [period] * len(inside)
    assert [excluded(periods, MADRID, at(text)) for text in outside] == [None] * len(outside)


def test_times_are_of_the_zone() -> None:
    periods = (("02:00-04:00", period_of("02:00-04:00")),)
    assert excluded(periods, MADRID, at("2026-11-28 02:30", ZoneInfo("UTC"))) == "02:00-04:00"
    assert excluded(periods, MADRID, at("2026-11-28 03:30", ZoneInfo("UTC"))) is None
    assert excluded((), MADRID, 0) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Sat 2:00-04:00", "is not of the form `Sat 02:00-04:00`"),
        ("Sab 02:00-04:00", "'Sab' is no day; allowed are Mon, Tue"),
        ("02:60-04:00", "times go from 00:00 to 24:00"),
        ("24:00-04:00", "times go from 00:00 to 24:00"),
        ("23:00-24:01", "times go from 00:00 to 24:00"),
        ("04:00-04:00", "is empty"),
    ],
)
def test_what_is_no_period_is_told(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        period_of(text)
