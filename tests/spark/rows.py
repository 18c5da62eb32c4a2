"""Rows of matched output for the tests of Spark, and logs that hold them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from cluster.output.disk import LocalDisk
from cluster.output.manifest import Change, Segment, manifest_named, newest, slot_folder
from cluster.output.rows import Row, Value
from cluster.output.segments import read_segment, write_segment
from cluster.output.slot_log import SlotLog, write_rows

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
    """Put all segments of a day of a slot together, and remove the old files."""
    disk = LocalDisk(path)
    log = _take_over(disk, slot)
    by_day: dict[str, list[Segment]] = {}
    for segment in sorted(log.manifest.segments.values(), key=lambda one: one.first):
        by_day.setdefault(segment.date, []).append(segment)
    added = [
        write_segment(
            disk, pa.concat_tables([read_segment(disk, one) for one in old]), day, log.incarnation, log.generation("c")
        )
        for day, old in by_day.items()
    ]
    removed = [one.path for old in by_day.values() for one in old]
    log.commit(Change(why="compact", first=log.manifest.first, next=log.manifest.next, added=added, removed=removed))
    for old_path in removed:
        disk.remove(old_path)


def expire(path: Path, slot: int, first: int) -> None:
    """Remove the segments that lie before offset `first`, as retention does."""
    disk = LocalDisk(path)
    log = _take_over(disk, slot)
    removed = [one.path for one in log.manifest.segments.values() if one.last < first]
    log.commit(Change(why="expire", first=first, next=log.manifest.next, removed=removed))
    for old_path in removed:
        disk.remove(old_path)


def _take_over(disk: LocalDisk, slot: int) -> SlotLog:
    last = manifest_named(newest(disk.names(slot_folder(slot))) or "")
    return SlotLog(disk, slot, last[0] + 1 if last else 1)
