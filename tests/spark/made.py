"""A small log for the jobs' tests, written by the real writer, and the rows as plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.output.disk import LocalDisk
from cluster.output.rows import Row
from cluster.output.slot_log import write_rows

HOUR = 3_600
BEGIN = 1_498_860_000
"""30 June 2017, 22:00 UTC: midnight in Madrid's summer."""
ACCEPTED_US = 1_790_000_000_000_000
STATIONS = {"Retiro": (40.4144, -3.6825), "Escuelas Aguirre": (40.4217, -3.6823), "Casa de Campo": (40.4194, -3.7473)}
SUBSCRIPTIONS = {(1 << 20) + 0: "alarm", (2 << 20) + 0: "lab", (2 << 20) + 7: "lab", (3 << 20) + 0: "roof"}


@dataclass(frozen=True)
class Reading:
    """What a publication says; time is the end of the hour."""

    station: str
    quantity: str
    value: float
    time: int

    @property
    def hour(self) -> int:
        """The beginning of the hour, seconds since 1970."""
        return self.time - HOUR


def city(hours: int = 72, seed: int = 1) -> list[Reading]:
    """Return hours of readings at three stations, a tenth missing, in time order, with ties among the values."""
    rng = random.Random(seed)
    found = []
    for hour in range(hours):
        for place, station in enumerate(STATIONS):
            for quantity, level, swing in (("no2", 45 + 10 * place, 45), ("o3", 95 - 10 * place, 60), ("co", 1, 2)):
                value = max(0.0, level + swing * math.sin(hour / 24 * math.tau) + rng.gauss(0, swing / 3))
                if rng.random() < 0.9:
                    found.append(Reading(station, quantity, round(value), BEGIN + (hour + 1) * HOUR))
    return found


def matches(reading: Reading) -> list[int]:
    """Return the subscriptions that want a reading: of none, one and several."""
    alarm, lab, lab_too, _ = SUBSCRIPTIONS
    holds = {
        alarm: reading.quantity == "no2" and reading.value > 80,
        lab: reading.station == "Retiro",
        lab_too: reading.quantity == "no2",
    }
    return [subscription for subscription, wanted in holds.items() if wanted]


def row(reading: Reading, place: int, *, epoch: int = 1, delay_us: int = 2_000, **more: Any) -> Row:
    """Return a reading as a row of the log, accepted `place` milliseconds after the first."""
    lat, lon = STATIONS[reading.station]
    # A whole number is published as an int now and then, as sensors do.
    value: float | int = int(reading.value) if place % 3 == 0 else float(reading.value)
    attributes = {
        "station": reading.station,
        "lat": lat,
        "lon": lon,
        "time": reading.time,
        "quantity": reading.quantity,
        reading.quantity: value,
        **more,
    }
    found = matches(reading)
    accepted = ACCEPTED_US + place * 1_000
    clients = sorted({SUBSCRIPTIONS[each] for each in found})
    return Row(0, epoch, "city", 1, place + 1, None, accepted, accepted + delay_us, attributes, found, clients)


def rows(found: Iterable[Reading]) -> Iterator[Row]:
    """Return readings as rows: delays from 1 ms up, epoch 2 from the 300th on."""
    for place, reading in enumerate(found):
        yield row(reading, place, epoch=1 + (place >= 300), delay_us=1_000 + place * 10)


def write(folder: Path, whole: list[Row], slots: int = 2) -> None:
    """Write rows alternately to the logs of some slots, in two segments each."""
    disk = LocalDisk(folder)
    for slot in range(slots):
        own = whole[slot::slots]
        for half in (own[: len(own) // 2], own[len(own) // 2 :]):
            if half:
                write_rows(disk, slot, half)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the percentile, linear between the two nearest ranks."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
