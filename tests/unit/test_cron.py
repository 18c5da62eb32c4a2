"""Cron's five fields: what they mean, day by day, and how a wrong one is refused."""

from __future__ import annotations

import datetime
import random
from zoneinfo import ZoneInfo

import pytest

from autoscaler.cron import parse_cron
from cluster.errors import ConfigError

UTC = ZoneInfo("UTC")
MADRID = ZoneInfo("Europe/Madrid")


def at(text: str, zone: ZoneInfo = UTC) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("text", "until", "last"),
    [
        ("0 7 * * 1-5", "2026-03-06T07:00", "2026-03-06T07:00"),  # a Friday
        ("0 7 * * 1-5", "2026-03-08T12:00", "2026-03-06T07:00"),
        ("0 7 * * mon-fri", "2026-03-08T12:00", "2026-03-06T07:00"),
        ("*/15 * * * *", "2026-03-08T12:14", "2026-03-08T12:00"),
        ("30 8-18/5 * * *", "2026-03-08T19:00", "2026-03-08T18:30"),
        ("0 0 29 2 *", "2026-03-08T12:00", None),
        ("0 0 1 jan,mar *", "2026-03-08T12:00", "2026-03-01T00:00"),
        ("0 0 * * 7", "2026-03-08T12:00", "2026-03-08T00:00"),
        ("0 0 * * fri-sun", "2026-03-09T12:00", "2026-03-08T00:00"),
        ("0 0 1 * fri", "2026-03-08T12:00", "2026-03-06T00:00"),
        ("5/20 10 * * *", "2026-03-08T12:00", "2026-03-08T10:45"),
    ],
)
def test_the_last_time_before(text: str, until: str, last: str | None) -> None:
    found = parse_cron(text).last(at(until), at(until) - 14 * 86_400, UTC)
    assert found == (None if last is None else at(last))


def test_the_beginning_of_the_window_is_open() -> None:
    entry = parse_cron("0 7 * * *")
    seven = at("2026-03-06T07:00")
    assert entry.last(seven + 60, seven, UTC) is None
    assert entry.last(seven + 60, seven - 1, UTC) == seven
    assert entry.last(seven - 1, seven - 60, UTC) is None


def test_the_clock_on_the_wall_of_a_timezone() -> None:
    entry = parse_cron("0 7 * * *")
    assert entry.last(at("2026-07-01T12:00"), 0, MADRID) == at("2026-07-01T05:00")
    assert entry.last(at("2026-01-05T12:00"), 0, MADRID) == at("2026-01-05T06:00")
    skipped = parse_cron("30 2 29 3 *").last(at("2026-03-30T00:00"), at("2026-03-28T00:00"), MADRID)
    assert skipped == at("2026-03-29T01:30"), "half an hour after the clock went from 2 to 3"
    twice = parse_cron("30 2 25 10 *").last(at("2026-10-26T00:00"), at("2026-10-24T00:00"), MADRID)
    assert twice == at("2026-10-25T00:30"), "the first of the two"


@pytest.mark.parametrize("seed", range(30))
def test_it_agrees_with_looking_at_every_minute(seed: int) -> None:
    source = random.Random(seed)

    def field(least: int, greatest: int) -> str:
        kind = source.randrange(4)
        if kind == 0:
            return "*"
        if kind == 1:
            return f"*/{source.randint(2, 9)}"
        first = source.randint(least, greatest)
        return str(first) if kind == 2 else f"{first}-{source.randint(first, greatest)}"

    text = f"{field(0, 59)} {field(0, 23)} {field(1, 28)} {field(1, 12)} {field(0, 6)}"
    entry = parse_cron(text)
    words = text.split()
    start = at("2026-02-20T00:00")
    until = start + 60 * source.randint(3000, 9000)
    expected = None
    for moment in range(int(start) + 60, int(until) + 1, 60):
        day = datetime.datetime.fromtimestamp(moment, UTC)
        of_month = _fits(words[2], day.day, 1)
        of_week = _fits(words[4], day.isoweekday() % 7, 0)
        either = not words[2].startswith("*") and not words[4].startswith("*")
        if (
            _fits(words[0], day.minute, 0)
            and _fits(words[1], day.hour, 0)
            and _fits(words[3], day.month, 1)
            and (of_month or of_week if either else of_month and of_week)
        ):
            expected = moment
    assert entry.last(until, start, UTC) == expected, text


def _fits(word: str, value: int, least: int) -> bool:
    if word == "*":
        return True
    if word.startswith("*/"):
        return (value - least) % int(word[2:]) == 0
    first, _, last = word.partition("-")
    return int(first) <= value <= int(last or first)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 7 * *", "4 fields, expected are 5: minute, hour, day of month, month, day of week"),
        ("0 0 7 * * 1", "6 fields"),
        ("0 24 * * *", "hour: '24', allowed is 0 to 23"),
        ("60 2 * * *", "minute: '60', allowed is 0 to 59"),
        ("0 2 0 * *", "day of month: '0', allowed is 1 to 31"),
        ("0 2 * foo *", "month: 'foo', allowed is 1 to 12 or jan to dec"),
        ("0 2 * * 8", "day of week: '8', allowed is 0 to 7 or sun to sat"),
        ("0 2 L * *", "day of month: 'l'"),
        ("0 2 * * 5#3", "day of week: '5#3', allowed are"),
        ("0 9-5 * * *", "hour: '9-5' ends before it begins"),
        ("*/0 2 * * *", "a step is 1 or more"),
        ("1,,2 2 * * *", "minute: ''"),
        ("@daily", "write five fields"),
        ("0 0 30 2 *", "no year has such a day"),
    ],
)
def test_errors_name_the_field_and_what_it_allows(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cron(text)
    assert said in str(caught.value)
    assert repr(text) in str(caught.value)
