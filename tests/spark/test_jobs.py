"""The jobs, each against the same figures computed plainly; streams against finished runs; batches given twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from itertools import combinations, groupby
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from pyspark.sql import SparkSession

from cluster.errors import SparkError
from cluster.spark.jobs import delay, exceedances, interest, running, series, store, tables, topk
from cluster.spark.jobs.limits import Limit, Limits
from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.readings import ReadingColumns, readings
from tests.spark import made
from tests.spark.written import publish_all

MADRID = ZoneInfo("Europe/Madrid")
LIMITS = Limits(
    limits=(
        Limit(name="NO2 hour", set="A", quantity="no2", averaging="hour", value=80, unit="µg/m³", allowed=5),
        Limit(name="NO2 hours", set="A", quantity="no2", averaging="hour", value=70, unit="µg/m³", consecutive=3),
        Limit(name="O3 8 hours", set="A", quantity="o3", averaging="eight_hours", value=110, unit="µg/m³", allowed=1),
        Limit(name="NO2 day", set="B", quantity="no2", averaging="day", value=50, unit="µg/m³", allowed=1),
        Limit(name="NO2 year", set="B", quantity="no2", averaging="year", value=40, unit="µg/m³"),
    )
)
OPTIONS = JobOptions(
    columns=ReadingColumns(timezone="Europe/Madrid"),
    limits=LIMITS,
    k=3,
    window_s=4 * made.HOUR,
    slide_s=made.HOUR,
    margin_s=0.1,
    watermark_s=48 * made.HOUR,
    open_subscriptions=4,
)
CITY = made.city()
ROWS = list(made.rows(CITY))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    made.write(folder, ROWS)
    return folder


@pytest.fixture(scope="module")
def done(spark: SparkSession, log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of finished runs of all jobs but store."""
    folder = tmp_path_factory.mktemp("done")
    source = plain(log)
    for name in ("series", "exceedances", "topk", "interest", "delay"):
        assert running.run_batch(name, source.read(spark, running.columns_of(name)), OPTIONS, folder)
    return folder


def plain(folder: Path, **options: str) -> running.Input:
    """The log by Spark's own Parquet reader: the source `kittiwake` has tests of its own, and takes longer to start."""
    return running.Input(path=str(folder), format="parquet", options=options)


def table(folder: Path, which: tables.Table) -> list[dict[str, Any]]:
    found = tables.read(folder, which)
    assert found is not None
    return [{name: _plain(value) for name, value in row.items()} for row in found.to_pylist()]


def _plain(value: object) -> object:
    """Floats to nine digits, so that the order in which means are summed up is of no consequence."""
    return round(value, 9) if isinstance(value, float) else value


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def local_day(hour: int) -> date:
    return datetime.fromtimestamp(hour, MADRID).date()


def hourly() -> dict[tuple[str, str], dict[int, float]]:
    """Each hour's value, as there is one reading an hour."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for one in CITY:
        found[one.station, one.quantity][one.hour] = float(one.value)
    return found


# -- readings


def test_what_is_a_reading(spark: SparkSession, tmp_path: Path) -> None:
    shared = {"station": "roof", "lat": 40, "lon": -3.5}
    given: list[dict[str, Any]] = [
        {**shared, "quantity": "no2", "no2": 45.5, "time": 1_500_000_000},
        {**shared, "quantity": "no2", "no2": 45, "time": 1_500_000_000.25},
        {**shared, "quantity": "no2", "pm10": 3.0},  # names what it does not have
        {**shared, "quantity": "no2", "no2": "high"},
        {**shared, "quantity": "no2", "no2": None},
        {"no2": 1.0, "o3": 2, "altitude": 600, "lat": 1.0, "lon": 2.0, "time": 10**15},  # no such time, no station
    ]
    accepted = made.ACCEPTED_US
    whole = [made.Row(0, 1, "p", 1, place, None, accepted, accepted, each, [], []) for place, each in enumerate(given)]
    made.write(tmp_path, whole, slots=1)
    found = readings(plain(tmp_path).read(spark), ReadingColumns())
    rows = sorted(tuple(row) for row in found.select("offset", "station", "quantity", "value", "lat", "lon").collect())
    assert rows == [
        (0, "roof", "no2", 45.5, 40.0, -3.5),
        (1, "roof", "no2", 45.0, 40.0, -3.5),
        (5, None, "no2", 1.0, 1.0, 2.0),
        (5, None, "o3", 2.0, 1.0, 2.0),
    ]
    times = [
        row[0]
        for row in found.selectExpr("unix_micros(time) as us", "offset").orderBy("offset").dropDuplicates().collect()
    ]
    assert sorted(times) == [1_500_000_000_000_000, 1_500_000_000_250_000, accepted]


# -- finished runs


def test_series(done: Path) -> None:
    hours = [
        {"station": station, "quantity": quantity, "start": at(hour), "mean": value, "max": value, "p95": value}
        | {"readings": 1, "coverage": 1.0}
        for (station, quantity), values in hourly().items()
        for hour, value in values.items()
    ]
    assert table(done, series.HOURS) == sorted(hours, key=lambda row: (row["station"], row["quantity"], row["start"]))
    days: dict[tuple[str, str, date], list[float]] = defaultdict(list)
    for one in CITY:
        days[one.station, one.quantity, local_day(one.hour)].append(float(one.value))
    assert {day for *_, day in days} == {date(2017, 7, 1), date(2017, 7, 2), date(2017, 7, 3)}
    expected = [
        {
            "station": station,
            "quantity": quantity,
            "day": day,
            "mean": _plain(sum(values) / len(values)),
            "max": max(values),
            "p95": _plain(made.percentile(values, 0.95)),
            "readings": len(values),
            "coverage": _plain(len(values) / 24),
        }
        for (station, quantity, day), values in sorted(days.items())
    ]
    assert table(done, series.DAYS) == expected


def judged() -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By limit and station: (ordinal, mean) of each period with enough hours, plainly."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for (station, quantity), values in hourly().items():
        days: dict[int, list[float]] = defaultdict(list)
        running_means: dict[int, list[float]] = defaultdict(list)
        for hour, value in values.items():
            days[local_day(hour).toordinal()].append(value)
        for hour in range(min(values), max(values) + 1, made.HOUR):
            eight = [values[each] for each in range(hour - 7 * made.HOUR, hour + 1, made.HOUR) if each in values]
            if len(eight) >= 6:
                running_means[local_day(hour).toordinal()].append(sum(eight) / len(eight))
        for limit in LIMITS.limits:
            if limit.quantity != quantity:
                continue
            if limit.averaging == "hour":
                found[limit.name][station] = [(hour // made.HOUR, value) for hour, value in sorted(values.items())]
            elif limit.averaging == "day":
                found[limit.name][station] = [
                    (day, sum(own) / len(own)) for day, own in sorted(days.items()) if len(own) >= 18
                ]
            elif limit.averaging == "eight_hours":
                found[limit.name][station] = [
                    (day, max(own)) for day, own in sorted(running_means.items()) if len(own) >= 18
                ]
    return found


def episodes_of(limit: Limit, periods: list[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """The runs above a limit without a break, that are long enough."""
    above = [(ordinal, mean) for ordinal, mean in periods if mean > limit.value]
    runs = groupby(enumerate(above), key=lambda pair: pair[1][0] - pair[0])
    whole = [[period for _, period in run] for _, run in runs]
    return [run for run in whole if len(run) >= limit.consecutive]


def test_exceedances(done: Path) -> None:
    limits = {limit.name: limit for limit in LIMITS.limits}
    expected, runs, yearly = Counter[tuple[str, str, float]](), Counter[tuple[str, str, int, int, float]](), {}
    for name, stations in judged().items():
        limit = limits[name]
        width = {"hour": 1, "day": 24, "eight_hours": 24}[limit.averaging]
        for station, periods in stations.items():
            found = episodes_of(limit, periods)
            expected.update((name, station, round(mean, 9)) for run in found for _, mean in run)
            runs.update((name, station, len(run), width * len(run), round(max(m for _, m in run), 9)) for run in found)
            times = len(found) if limit.consecutive > 1 else sum(map(len, found))
            yearly[name, station] = (
                len(periods),
                times,
                sum(width * len(run) for run in found),
                times <= limit.allowed,
            )
    rows = table(done, exceedances.EXCEEDANCES)
    assert Counter((row["limit"], row["station"], row["mean"]) for row in rows) == expected
    assert {name for name, *_ in expected} == {"NO2 hour", "NO2 hours", "O3 8 hours", "NO2 day"}  # each kind is tried
    rows = table(done, exceedances.EPISODES)
    assert Counter((r["limit"], r["station"], r["periods"], r["hours"], r["peak"]) for r in rows) == runs
    assert max(count for _, _, count, _, _ in runs) > 3
    rows = table(done, exceedances.COMPLIANCE)
    found_rows = {
        (row["limit"], row["station"]): (row["periods"], row["exceedances"], row["hours_above"], row["kept"])
        for row in rows
        if row["limit"] != "NO2 year"
    }
    assert found_rows == yearly
    assert {kept for *_, kept in yearly.values()} == {True, False}
    # Three days do not make a year: its mean so far is there, and is no exceedance.
    for row in (row for row in rows if row["limit"] == "NO2 year"):
        values = hourly()[row["station"], "no2"].values()
        assert row["peak"] == _plain(sum(values) / len(values)) > 40
        assert (row["exceedances"], row["kept"], row["complete"]) == (0, True, False)


def top_plainly() -> list[tuple[str, datetime, int, float, str, datetime]]:
    windows: dict[tuple[str, int], list[made.Reading]] = defaultdict(list)
    for one in CITY:
        for start in range(one.hour - 3 * made.HOUR, one.hour + 1, made.HOUR):
            windows[one.quantity, start].append(one)
    found = []
    for (quantity, start), inside in sorted(windows.items()):
        best = sorted(inside, key=lambda one: (-one.value, -one.time, one.station))[:3]
        found += [(quantity, at(start), rank, float(o.value), o.station, at(o.time)) for rank, o in enumerate(best, 1)]
    return found


def test_topk(done: Path) -> None:
    rows = table(done, topk.TOP)
    names = ("quantity", "start", "rank", "value", "station", "time")
    assert [tuple(row[name] for name in names) for row in rows] == top_plainly()
    assert all(row["end"] - row["start"] == timedelta(hours=4) for row in rows)


def test_interest(done: Path) -> None:
    found = [made.matches(one) for one in CITY]
    counts = Counter(each for some in found for each in some)
    rows = table(done, interest.SUBSCRIPTIONS)
    assert {row["subscription"]: row["matches"] for row in rows} == counts
    assert all(row["selectivity"] == _plain(row["matches"] / len(CITY)) for row in rows)
    assert {row["client_number"] for row in rows} == {1, 2}
    clients = Counter(made.SUBSCRIPTIONS[each] for some in found for each in some)
    both_labs = sum((2 << 20) in some and (2 << 20) + 7 in some for some in found)
    clients["lab"] -= both_labs
    assert {row["client"]: row["notifications"] for row in table(done, interest.CLIENTS)} == clients
    pairs = Counter(pair for some in found for pair in combinations(some, 2))
    overlap = {(row["first"], row["second"]): row for row in table(done, interest.OVERLAP)}
    assert {pair: row["both"] for pair, row in overlap.items()} == pairs
    for (first, second), row in overlap.items():
        either = counts[first] + counts[second] - pairs[first, second]
        assert row["jaccard"] == _plain(pairs[first, second] / either)
        assert row["of_smaller"] == _plain(pairs[first, second] / min(counts[first], counts[second]))
    attributes = {(row["attribute"], row["type"]): row for row in table(done, interest.ATTRIBUTES)}
    no2 = [(place, some) for place, (one, some) in enumerate(zip(CITY, found, strict=True)) if one.quantity == "no2"]
    as_int = [some for place, some in no2 if place % 3 == 0]
    assert attributes["no2", "int"]["publications"] == len(as_int)
    assert attributes["no2", "float"]["publications"] == len(no2) - len(as_int)
    assert attributes["no2", "int"]["matches"] == sum(map(len, as_int))
    ranges = [row for row in table(done, interest.RANGES) if row["attribute"] == "no2"]
    assert sum(row["publications"] for row in ranges) == len(no2)
    assert sum(row["matches"] for row in ranges) == sum(len(some) for _, some in no2)
    for row in ranges:
        last = row is ranges[-1]
        inside = [
            len(some)
            for place, some in no2
            if row["low"] <= CITY[place].value < row["high"] or (last and CITY[place].value == row["high"])
        ]
        assert (row["publications"], row["matches"]) == (len(inside), sum(inside))


def test_the_summary_of_interest(done: Path) -> None:
    found = msgspec.json.decode((done / interest.SUMMARY).read_bytes(), type=interest.Summary)
    sizes = sorted(len(made.matches(one)) for one in CITY)
    assert (found.log_holds, found.publications, found.clients_seen) == ("all", len(CITY), 2)
    assert (found.subscriptions_seen, found.subscriptions_open, found.share_never_matched) == (3, 4, 0.25)
    assert found.matched_share == sum(size > 0 for size in sizes) / len(CITY)
    assert found.matches_per_publication.mean == sum(sizes) / len(CITY)
    assert (found.matches_per_publication.p50, found.matches_per_publication.max) == (sizes[len(CITY) // 2], sizes[-1])
    assert found.seconds == pytest.approx((len(CITY) - 1) / 1000)
    assert found.publications_per_second == len(CITY)  # over one second at least


def test_delay(done: Path) -> None:
    delays = [(row.epoch, (row.time_released_us - row.time_accepted_us) / 1000) for row in ROWS]
    for row in table(done, delay.EPOCHS):
        own = [ms for epoch, ms in delays if epoch == row["epoch"]]
        figures = {f"p{share}_ms": _plain(made.percentile(own, share / 100)) for share in (50, 95, 99)}
        assert row == {"epoch": row["epoch"], "publications": len(own), **figures, "max_ms": max(own)}
    assert [row["epoch"] for row in table(done, delay.EPOCHS)] == [1, 2]
    slots = {row["slot"]: row["publications"] for row in table(done, delay.SLOTS)}
    assert slots == {0: len(ROWS[0::2]), 1: len(ROWS[1::2])}
    assert sum(row["publications"] for row in table(done, delay.MINUTES)) == len(ROWS)
    rows = {row["phase"]: row for row in table(done, delay.TRANSITIONS)}
    released = [(row.epoch, row.time_released_us, ms) for row, (_, ms) in zip(ROWS, delays, strict=True)]
    first = min(us for epoch, us, _ in released if epoch == 2)
    last = max(us for epoch, us, _ in released if epoch == 1)
    start, end = first - 1_000_000, max(first, last) + 1_000_000
    during = [ms for _, us, ms in released if start <= us < end]
    assert rows["during"]["publications"] == len(during) > 0
    assert rows["during"]["p95_ms"] == _plain(made.percentile(during, 0.95))
    assert (rows["during"]["first_epoch"], rows["during"]["last_epoch"]) == (1, 2)
    assert rows["before"]["publications"] == 0
    assert rows["before"]["p50_ms"] is None


def test_what_is_written_of_all_publications(spark: SparkSession, tmp_path: Path) -> None:
    """A log of `output.all`, as exit points write it, is read as it is, and counts what matched nothing.

    The log of the other tests has such rows too, so of the jobs only the one that asks for matches is run here.
    """
    out, folder = tmp_path / "out", tmp_path / "done"
    publish_all(out, ROWS[:300], 2 << 20, "station == 'Retiro'", "lab")
    wanted = [one.station == "Retiro" for one in CITY[:300]]
    read = running.Input(path=str(out)).read(spark).select("sequence", "subscriptions", "clients").collect()
    expected = [(place, [2 << 20], ["lab"]) if one else (place, [], []) for place, one in enumerate(wanted, 1)]
    assert sorted(map(tuple, read)) == expected
    assert running.run_batch("interest", plain(out).read(spark), OPTIONS, folder)
    found = msgspec.json.decode((folder / interest.SUMMARY).read_bytes(), type=interest.Summary)
    assert (found.log_holds, found.publications, found.subscriptions_seen) == ("all", 300, 1)
    assert found.matched_share == sum(wanted) / 300 == found.notifications_per_publication
    (row,) = table(folder, interest.SUBSCRIPTIONS)
    assert (row["subscription"], row["selectivity"]) == (2 << 20, _plain(found.matched_share))
    assert [(row["client"], row["notifications"]) for row in table(folder, interest.CLIENTS)] == [("lab", sum(wanted))]


# -- streams


@pytest.fixture(scope="module")
def followed(spark: SparkSession, log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of streams that took the log in four batches, or three."""
    folder = tmp_path_factory.mktemp("followed")
    for name in ("series", "exceedances", "topk", "interest"):
        assert follow(spark, name, plain(log, maxFilesPerTrigger="1"), folder) == 4
    source = running.Input(path=str(log), options={"maxOffsetsPerTrigger": "250"})
    assert follow(spark, "delay", source, folder) == 3
    return folder


def follow(
    spark: SparkSession, name: str, source: running.Input | Path, folder: Path, options: JobOptions = OPTIONS
) -> int:
    """Follow until caught up; return the number of batches."""
    if isinstance(source, Path):
        source = plain(source, maxFilesPerTrigger="2")
    queries = running.start(name, source.follow(spark, running.columns_of(name)), options, folder, trigger_s=None)
    seen: dict[str, running.Progress] = {}
    running.follow(queries, seen.update, lambda: False)
    slowest = min(seen.values(), key=lambda one: one.batch)
    if slowest.batch >= 0:
        assert running.behind(source, slowest) == (0 if source.format == "kittiwake" else None)
    return slowest.batch + 1


def test_streams_end_with_what_a_finished_run_has(done: Path, followed: Path) -> None:
    for which in (series.HOURS, series.DAYS, topk.TOP, delay.MINUTES):
        assert table(followed, which) == table(done, which), which.name
    for which in (interest.SUBSCRIPTIONS, interest.CLIENTS, interest.ATTRIBUTES):
        assert table(followed, which) == table(done, which), which.name
    assert (followed / interest.SUMMARY).read_bytes() == (done / interest.SUMMARY).read_bytes()
    hourly_rows = [row for row in table(done, exceedances.EXCEEDANCES) if row["limit"] == "NO2 hour"]
    assert table(followed, exceedances.EXCEEDANCES) == hourly_rows


def test_a_stream_and_a_finished_run_do_not_mix(spark: SparkSession, log: Path, done: Path, followed: Path) -> None:
    source = plain(log)
    with pytest.raises(SparkError, match="a stream keeps this table"):
        running.run_batch("topk", source.read(spark), OPTIONS, followed)
    with pytest.raises(SparkError, match="no stream keeps it"):
        running.start("topk", source.follow(spark), OPTIONS, done, trigger_s=None)


def stored(spark: SparkSession, folder: Path) -> Counter[tuple[int, int, date, str]]:
    frame = spark.read.parquet(str(folder / "store")).select("slot", "offset", "day", "station")
    return Counter(tuple(row) for row in frame.collect())  # type: ignore[misc]


def log_rows() -> Counter[tuple[int, int, date, str]]:
    return Counter((place % 2, place // 2, local_day(one.hour), one.station) for place, one in enumerate(CITY))


def test_store_has_each_row_once_also_when_batches_come_again(spark: SparkSession, tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "lake"
    made.write(out, ROWS[:400])
    assert follow(spark, "store", out, folder) == 2
    assert follow(spark, "store", out, folder) == 0
    # A late reading, of a day that is stored already, and the rest.
    made.write(out, ROWS[400:])
    forget_last_batch(folder, "store")
    follow(spark, "store", out, folder)
    assert stored(spark, folder) == log_rows()
    names = {each.name for each in (folder / "store").rglob("*") if each.is_file() and "crc" not in each.name}
    assert all(name.startswith("batch-") for name in names), names
    row = spark.read.parquet(str(folder / "store")).where("slot = 0 and offset = 0").first()
    assert row is not None
    assert (row["value"], row["quantity"], row["lat"], row["strings"]["station"]) == (
        CITY[0].value,
        CITY[0].quantity,
        made.STATIONS[CITY[0].station][0],
        CITY[0].station,
    )


def test_a_delta_table_has_each_row_once_also_when_batches_come_again(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    out, folder = tmp_path / "out", tmp_path / "lake"
    options = msgspec.structs.replace(OPTIONS, delta=True)
    made.write(out, ROWS[:400])
    follow(spark, "store", out, folder, options)
    version = DeltaTable(str(folder / "store_delta")).version()
    forget_last_batch(folder, "store_delta")
    follow(spark, "store", out, folder, options)
    assert DeltaTable(str(folder / "store_delta")).version() == version, "a batch was committed twice"
    made.write(out, ROWS[400:])
    follow(spark, "store", out, folder, options)
    found = DeltaTable(str(folder / "store_delta")).to_pyarrow_table(columns=["slot", "offset", "day", "station"])
    assert Counter(tuple(row.values()) for row in found.to_pylist()) == log_rows()


def forget_last_batch(folder: Path, name: str) -> None:
    """Leave things as a crash does that comes after a batch was applied and before Spark noted it."""
    commits = sorted((folder / "_checkpoints" / name / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    assert store.STORE.name == "store"


def test_topk_takes_a_late_reading_and_minds_no_batch_twice(spark: SparkSession, tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "top"
    late = next(place for place, row in enumerate(ROWS) if CITY[place] == max(CITY, key=lambda one: one.value))
    made.write(out, [row for place, row in enumerate(ROWS) if place != late], slots=1)
    follow(spark, "topk", out, folder)
    made.write(out, [ROWS[late]], slots=1)
    follow(spark, "topk", out, folder)
    forget_last_batch(folder, "topk")
    follow(spark, "topk", out, folder)
    names = ("quantity", "start", "rank", "value", "station", "time")
    assert [tuple(row[name] for name in names) for row in table(folder, topk.TOP)] == top_plainly()


def test_an_empty_log(spark: SparkSession, tmp_path: Path) -> None:
    made.write(tmp_path / "out", [ROWS[0]], slots=1)
    nothing = plain(tmp_path / "out").read(spark).where("offset < 0")
    for name in ("topk", "interest", "delay"):
        running.run_batch(name, nothing, OPTIONS, tmp_path / "to")
    assert table(tmp_path / "to", interest.SUBSCRIPTIONS) == []
    assert not (tmp_path / "to" / interest.SUMMARY).exists()
