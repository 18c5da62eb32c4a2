"""Rows of matched output for the tests of Spark, and logs that hold them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from cluster.output.disk import LocalDisk
from cluster.output.manifest import Change, Claim, Segment
from cluster.output.rows import Row, Value
from cluster.output.slot_log import SlotLog, write_rows
from cluster.output.tidying import Tidying, TidySettings

DAY_US = 86_400_000_000
NOON_US = 1_496_318_400_000_000  # 2017-06-01 12:00 UTC
STATIONS = ["Pza. de España", "Retiro", "Casa de Campo", "Sanchinarro"]


def make_row(number: int, attributes: Mapping[str, Value], *, time_us: int = NOON_US, epoch: int = 1) -> Row:
    """Return a row whose columns follow from its number; its offset is for the log to set."""
    return Row(
        offset=0,
        epoch=epoch,
        publisher=f"station-{number % 7}",
        instance=2**64 - 1 - number % 7,
        sequence=number,
        time_published_us=None if number % 5 == 0 else time_us - 2000,
        time_accepted_us=time_us,
        time_released_us=time_us + 1500,
        attributes=attributes,
        subscriptions=[number % 3, 100 + number % 11],
        clients=["lab"] if number % 2 else ["", "lab"],
    )


def reading(number: int, rng: random.Random) -> dict[str, Value]:
    """Return attributes as of an air-quality station, with all types and some that are missing."""
    found: dict[str, Value] = {
        "station": STATIONS[number % len(STATIONS)],
        "no2": rng.choice([rng.uniform(0, 200), rng.randrange(200)]),
        "counter": rng.choice([2**53 + number % 3, 2**64 - 1, -(2**63), 0]),
        "valid": rng.random() < 0.9,
        "lat": 40.4 + number % 10 / 100,
        "lon": -3.7,
    }
    if number % 4 == 0:
        found["note"] = rng.choice(["", None, "é"])
    return found


def readings(first: int, count: int, seed: int = 1, *, time_us: int = NOON_US, epoch: int = 1) -> list[Row]:
    """Return rows numbered from `first`, a millisecond apart."""
    rng = random.Random(f"{seed}-{first}")
    return [
        make_row(number, reading(number, rng), time_us=time_us + 1000 * (number - first), epoch=epoch)
        for number in range(first, first + count)
    ]


def append(path: Path, slot: int, rows: list[Row]) -> list[Segment]:
    """Commit rows to a slot's log."""
    return write_rows(LocalDisk(path), slot, rows)


def compact(path: Path, slot: int) -> None:
    """Merge all small neighbours of a slot, and remove their files without grace."""
    tidying = Tidying(_take_over(path, slot), TidySettings(grace_s=0))
    while tidying.step(0, everything=True):
        pass


def expire(path: Path, slot: int, first: int) -> None:
    """Remove the segments that lie before offset `first`, as retention does."""
    log = _take_over(path, slot)
    removed = [one.path for one in log.manifest.segments.values() if one.last < first]
    log.commit(Change(why="expire", first=first, next=log.manifest.next, removed=removed))
    for old_path in removed:
        log.disk.remove(old_path)


def _take_over(path: Path, slot: int) -> SlotLog:
    return SlotLog(LocalDisk(path), slot, Claim("", 0))
