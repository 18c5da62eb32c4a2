"""What the report shows, as plain data: gathered from the log by Spark, small whatever the log's size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cluster.readings.madrid import QUANTITIES
from cluster.spark.jobs import delay, exceedances, interest, series, topk
from cluster.spark.jobs.limits import Limits
from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.readings import COLUMNS, readings

STATIONS_MAX = 500
EPISODES = 8
BUCKETS_S = (1, 5, 10, 60, 600, 3_600, 86_400)
BUCKETS_MAX = 240


class Station(msgspec.Struct, frozen=True):
    """A place with readings; lat and lon are None if none had them."""

    name: str
    lat: float | None
    lon: float | None
    readings: int


class Compliance(msgspec.Struct, frozen=True):
    """One limit at one station in one year, as in exceedances.compliance."""

    limit: str
    set: str
    quantity: str
    averaging: str
    station: str
    year: int
    exceedances: int
    allowed: int
    hours_above: int
    peak: float
    value: float
    unit: str
    kept: bool
    complete: bool


class Episode(msgspec.Struct, frozen=True):
    """A time above a limit without a break; start in UTC."""

    limit: str
    station: str
    start: datetime
    hours: int
    peak: float
    unit: str


class Day(msgspec.Struct, frozen=True):
    """A quantity's daily means over the stations."""

    day: date
    mean: float
    lowest: float
    highest: float


class High(msgspec.Struct, frozen=True):
    """One of the highest readings; time in the time zone."""

    rank: int
    value: float
    station: str
    time: datetime


class Delay(msgspec.Struct, frozen=True):
    """The delay in a span of time, in milliseconds."""

    start: datetime
    publications: int
    p50: float
    p95: float
    p99: float
    max: float


class Phase(msgspec.Struct, frozen=True):
    """One phase of a transition; without publications the figures are None."""

    number: int
    label: str
    phase: str
    start: datetime
    end: datetime
    publications: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page.

    first, last: of the readings' times, in the time zone; None without readings.
    hours:       quantity -> weekday (0 is Monday) and hour of the day -> mean.
    delays:      by `bucket_s` seconds.
    """

    timezone: str
    summary: interest.Summary | None
    readings: int
    first: datetime | None
    last: datetime | None
    stations: list[Station]
    stations_left_out: int
    quantities: dict[str, int]
    units: dict[str, str]
    limits: Limits
    compliance: list[Compliance]
    episodes: list[Episode]
    days: dict[str, list[Day]]
    hours: dict[str, dict[tuple[int, int], float]]
    highest: dict[str, list[High]]
    bucket_s: int
    delays: list[Delay]
    phases: list[Phase]
    epochs: list[int]


def gather(read: Callable[[Sequence[str]], DataFrame], options: JobOptions) -> Facts:
    """Compute what the report shows. read: gives the log with these columns at least."""
    zone = options.columns.timezone
    found = readings(read(COLUMNS), options.columns).persist(StorageLevel.MEMORY_AND_DISK)
    per_quantity = found.groupBy("quantity").agg(
        F.count("value"),
        F.date_format(F.from_utc_timestamp(F.min("time"), zone), _ISO),
        F.date_format(F.from_utc_timestamp(F.max("time"), zone), _ISO),
    )
    counts = sorted(map(tuple, per_quantity.collect()))
    stations = [
        Station(*row)
        for row in found.where(F.col("station").isNotNull())
        .groupBy("station")
        .agg(F.avg("lat"), F.avg("lon"), F.count("value"))
        .orderBy(F.desc("count(value)"), "station")
        .collect()
    ]
    judged = exceedances.judged(found.where(F.col("station").isNotNull()), options.limits, zone).cache()
    runs = exceedances.episodes(judged)
    timed = read(delay.COLUMNS).select(*delay.COLUMNS).persist(StorageLevel.MEMORY_AND_DISK)
    bucket_s, delays = _delays(timed)
    counted = [tuple(row) for row in interest.sums(read(interest.COLUMNS)).select(*interest.SUM_COLUMNS).collect()]
    facts = Facts(
        timezone=zone,
        summary=interest.summary(counted, options),
        readings=sum(count for _, count, _, _ in counts),
        first=min((datetime.fromisoformat(first) for *_, first, _ in counts), default=None),
        last=max((datetime.fromisoformat(last) for *_, last in counts), default=None),
        stations=sorted(stations[:STATIONS_MAX], key=lambda one: one.name),
        stations_left_out=max(0, len(stations) - STATIONS_MAX),
        quantities={quantity: count for quantity, count, *_ in counts},
        units=_units(options.limits),
        limits=options.limits,
        compliance=_compliance(judged, runs),
        episodes=_episodes(runs),
        days=_days(found, options),
        hours=_hours(found),
        highest=_highest(found, options),
        bucket_s=bucket_s,
        delays=delays,
        phases=_phases(timed, options),
        epochs=[one.epoch for one in delay.epochs_seen(timed)],
    )
    for frame in (found, judged, timed):
        frame.unpersist()
    return facts


_ISO = "yyyy-MM-dd'T'HH:mm:ss"


def _units(limits: Limits) -> dict[str, str]:
    return {**dict(QUANTITIES.values()), **{limit.quantity: limit.unit for limit in limits.limits}}


def _compliance(judged: DataFrame, runs: DataFrame) -> list[Compliance]:
    frame = exceedances.compliance(judged, runs).select(*Compliance.__struct_fields__)
    return [Compliance(*row) for row in frame.orderBy("limit", "station", "year").collect()]


def _episodes(runs: DataFrame) -> list[Episode]:
    """Return the longest of those that are counted in hours and days; a year is not an episode to look at."""
    micros = F.unix_micros("start").alias("us")
    frame = runs.where(F.col("averaging") != "year").select("limit", "station", micros, "hours", "peak", "unit")
    rows = frame.orderBy(F.desc("hours"), F.desc("peak"), "limit", "station", "us").limit(EPISODES).collect()
    return [Episode(limit, station, delay.from_us(us), *rest) for limit, station, us, *rest in map(tuple, rows)]


def _days(found: DataFrame, options: JobOptions) -> dict[str, list[Day]]:
    daily = series.daily(found, options.interval_s).groupBy("quantity", "day")
    means = daily.agg(F.avg("mean"), F.min("mean"), F.max("mean"))
    return _grouped((row[0], Day(*row[1:])) for row in means.orderBy("quantity", "day").collect())


def _hours(found: DataFrame) -> dict[str, dict[tuple[int, int], float]]:
    frame = found.groupBy("quantity", F.weekday("local"), F.hour("local")).agg(F.avg("value"))
    hours: dict[str, dict[tuple[int, int], float]] = {}
    for quantity, weekday, hour, mean in map(tuple, frame.collect()):
        hours.setdefault(quantity, {})[weekday, hour] = mean
    return hours


def _highest(found: DataFrame, options: JobOptions) -> dict[str, list[High]]:
    best = topk.highest(found, options.k)
    local = F.date_format(F.from_utc_timestamp("time", options.columns.timezone), _ISO)
    rows = best.select("quantity", "rank", "value", F.coalesce("station", F.lit("")), local).orderBy("quantity", "rank")
    return _grouped(
        (quantity, High(rank, value, station, datetime.fromisoformat(time)))
        for quantity, rank, value, station, time in map(tuple, rows.collect())
    )


def _delays(timed: DataFrame) -> tuple[int, list[Delay]]:
    """Return the delay over time, and the width of its buckets: as fine as BUCKETS_MAX of them allow."""
    ends = timed.agg(F.unix_micros(F.min("time_released")), F.unix_micros(F.max("time_released"))).first()
    if ends is None or ends[0] is None:
        return BUCKETS_S[0], []
    length_s = (ends[1] - ends[0]) / 1e6
    width = next((each for each in BUCKETS_S if length_s / each <= BUCKETS_MAX), BUCKETS_S[-1])
    bucket = F.window("time_released", f"{width} seconds").alias("span")
    frame = delay.by(timed, bucket).select(F.unix_micros("span.start"), "publications", *_FIGURES)
    return width, [Delay(delay.from_us(us), *rest) for us, *rest in sorted(map(tuple, frame.collect()))]


_FIGURES = ("p50_ms", "p95_ms", "p99_ms", "max_ms")


def _phases(timed: DataFrame, options: JobOptions) -> list[Phase]:
    edges = (F.unix_micros("start"), F.unix_micros("end"))
    frame = delay.around_transitions(timed, options).select(
        "number", "label", "phase", *edges, "publications", *_FIGURES
    )
    rows = sorted(map(tuple, frame.collect()), key=lambda row: (row[0], delay.PHASES.index(row[2])))
    return [
        Phase(number, label, phase, delay.from_us(start), delay.from_us(end), *rest)
        for number, label, phase, start, end, *rest in rows
    ]


def _grouped(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def length_of(facts: Facts) -> timedelta:
    """Return the time that the readings span."""
    return timedelta(0) if facts.first is None or facts.last is None else facts.last - facts.first
