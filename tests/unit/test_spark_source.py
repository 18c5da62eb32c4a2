"""The data source without a JVM: what Spark calls in Python is called here."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import IntegerType

from cluster.errors import SparkError
from cluster.language.filter import parse
from cluster.output.adopting import join
from cluster.output.disk import LocalDisk
from cluster.output.errors import OutputError
from cluster.output.manifest import Change, Claim, Lost
from cluster.output.reader import open_log
from cluster.output.rows import attributes_of
from cluster.output.slot_log import SlotLog
from cluster.output.slot_writer import SlotWriter
from cluster.spark import pruning
from cluster.spark.columns import spark_schema
from cluster.spark.portions import Portion
from cluster.spark.source import MatchedOutput, StreamReader
from tests.properties.output_process import matched
from tests.spark.rows import DAY_US, NOON_US, append, compact, expire, readings

FIRST = datetime(2017, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two slots, two days, four segments, 230 rows."""
    append(tmp_path, 0, readings(0, 100))
    append(tmp_path, 0, readings(100, 50, time_us=NOON_US + DAY_US, epoch=2))
    append(tmp_path, 1, readings(150, 30))
    append(tmp_path, 1, readings(180, 50, time_us=NOON_US + 60_000_000, epoch=3))
    return tmp_path


def source(path: Path, **options: str) -> MatchedOutput:
    return MatchedOutput({"path": str(path), **options})


def rows_of(reader: Any, portions: Any) -> list[dict[str, Any]]:
    batches = [batch for portion in portions for batch in reader.read(portion)]
    return [row for batch in batches for row in batch.to_pylist()]


def read(path: Path, filters: list[Filter] | None = None, **options: str) -> list[dict[str, Any]]:
    made = source(path, **options)
    reader = made.reader(made.schema())
    if filters is not None:
        assert list(reader.pushFilters(filters)) == [one for one in filters if not pruning.is_exact(one)]
    return rows_of(reader, reader.partitions())


def names(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    found = [(row["slot"], row["offset"]) for row in rows]
    assert len(set(found)) == len(found)
    return sorted(found)


EVERY = [(0, offset) for offset in range(150)] + [(1, offset) for offset in range(80)]


def test_every_row_once_and_as_it_was(log: Path) -> None:
    rows = read(log)
    assert names(rows) == EVERY
    written = {row.sequence: row for row in readings(0, 100)}
    for row in rows[:100]:
        assert attributes_of(row) == written[row["sequence"]].attributes
        assert int(row["instance"]) == written[row["sequence"]].instance
        assert row["date"] == date(2017, 6, 1)
    assert {row["date"] for row in rows} == {date(2017, 6, 1), date(2017, 6, 2)}


def test_columns(log: Path) -> None:
    assert set(read(log, columns="date,integers")[0]) == {"date", "integers"}
    assert len(read(log, columns="date")) == 230
    assert len(read(log, columns="date", filter="no2 >= 0")) == 230
    chosen = spark_schema(["numbers", "clients", "time_published"])
    for field in chosen.fields:
        field.nullable = True
        for inside in ("valueContainsNull", "containsNull"):
            if hasattr(field.dataType, inside):
                setattr(field.dataType, inside, True)
    reader = source(log).reader(chosen)
    batch = next(iter(reader.read(reader.partitions()[0])))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.field("numbers").type == pa.map_(pa.string(), pa.float64())
    assert all(field.nullable for field in batch.schema)
    with pytest.raises(SparkError, match="no column no2; there are offset, slot"):
        source(log, columns="offset,no2").schema()
    wrong = spark_schema(["slot"]).add("offset", IntegerType())
    with pytest.raises(SparkError, match="column offset is bigint, not int"):
        source(log).reader(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "no2 > 40 and station = 'Retiro'",
        "counter == 9007199254740993 or counter == 18446744073709551615",
        "note is null or note == ''",
        "(note starts_with 'é') is not true",
        "near(lat, lon, 40.42, -3.7, 1500) and not valid == false",
    ],
)
def test_the_filter_is_the_matchers(log: Path, text: str) -> None:
    filter = parse(text)
    expected = [row for row in read(log) if filter.matches(attributes_of(row))]
    assert 0 < len(expected) < 230
    assert read(log, filter=text) == expected
    assert names(read(log, filter=text, columns="slot,offset")) == names(expected)


def test_filters_of_spark_leave_out_segments(log: Path) -> None:
    made = source(log)
    cases: list[tuple[list[Filter], int]] = [
        ([EqualTo(("date",), date(2017, 6, 2))], 1),
        ([Not(EqualTo(("date",), date(2017, 6, 2)))], 3),
        ([EqualTo(("slot",), 1), LessThan(("offset",), 30)], 1),
        ([GreaterThan(("epoch",), 1)], 2),
        ([GreaterThanOrEqual(("time_accepted",), FIRST + timedelta(minutes=1))], 2),
        ([In(("offset",), (149, 500))], 1),
        ([EqualTo(("publisher",), "station-1")], 4),
        ([LessThan(("offset",), 0)], 0),
    ]
    for filters, segments in cases:
        reader = made.reader(made.schema())
        assert list(reader.pushFilters(filters)) == []
        portions: Any = reader.partitions()
        assert sum(len(portion.pieces) for portion in portions) == segments, filters


COLUMNS: dict[str, Callable[[random.Random], Any]] = {
    "offset": lambda rng: rng.choice([-1, 0, 29, 30, 99, 100, 149, 2**40]),
    "slot": lambda rng: rng.randrange(-1, 3),
    "epoch": lambda rng: rng.randrange(5),
    "sequence": lambda rng: rng.randrange(230),
    "publisher": lambda rng: f"station-{rng.randrange(8)}",
    "time_accepted": lambda rng: FIRST + timedelta(milliseconds=rng.choice([0, 30, 99, 60_020, 86_400_010])),
    "time_published": lambda rng: FIRST + timedelta(milliseconds=rng.choice([-2, 28, 60_018, 86_400_008])),
    "date": lambda rng: date(2017, 6, rng.randint(1, 3)),
}


def random_filter(rng: random.Random) -> tuple[Filter, Callable[[dict[str, Any]], bool | None]]:
    """Return a filter of Spark, and what it means for a row by SQL: true, false or null."""
    column = rng.choice(list(COLUMNS))
    value = COLUMNS[column](rng)
    path = (column,)
    if rng.random() < 0.1:
        one, wanted = rng.choice([(IsNull(path), True), (IsNotNull(path), False)])
        return one, lambda row: (row[column] is None) is wanted
    compared: list[tuple[Filter, Callable[[Any], bool]]] = [
        (EqualTo(path, value), lambda found: bool(found == value)),
        (GreaterThan(path, value), lambda found: bool(found > value)),
        (GreaterThanOrEqual(path, value), lambda found: bool(found >= value)),
        (LessThan(path, value), lambda found: bool(found < value)),
        (LessThanOrEqual(path, value), lambda found: bool(found <= value)),
    ]
    several = tuple(COLUMNS[column](rng) for _ in range(3))
    compared.append((In(path, several), lambda found: found in several))
    if column == "publisher":
        compared += [
            (StringStartsWith(path, value[:5]), lambda found: found.startswith(value[:5])),
            (StringEndsWith(path, value[-2:]), lambda found: found.endswith(value[-2:])),
            (StringContains(path, value[4:]), lambda found: value[4:] in found),
        ]
    chosen, holds = rng.choice(compared)
    return chosen, lambda row: None if row[column] is None else holds(row[column])


@pytest.mark.parametrize("seed", range(4))
def test_filters_of_spark_mean_what_they_do_in_sql(log: Path, seed: int) -> None:
    rng = random.Random(seed)
    everything = read(log)
    for _ in range(60):
        filters, meanings = [], []
        for _ in range(rng.randint(1, 3)):
            one, meaning = random_filter(rng)
            negated = rng.random() < 0.3
            filters.append(Not(one) if negated else one)
            meanings.append((meaning, negated))
            assert pruning.is_exact(filters[-1])
        expected = [row for row in everything if all((meaning(row) is (not negated)) for meaning, negated in meanings)]
        assert names(read(log, filters)) == names(expected), filters


@pytest.mark.parametrize(
    "left",
    [
        EqualTo(("numbers", "no2"), 1.0),
        EqualTo(("instance",), 5),
        EqualNullSafe(("offset",), 5),
        In(("offset",), (1, None)),
        EqualTo(("offset",), True),
        EqualTo(("date",), datetime(2017, 6, 1)),
        EqualTo(("time_accepted",), datetime(2017, 6, 1)),
        EqualTo(("slot",), 2**31),
        IsNotNull(("clients",)),
        StringContains(("date",), "2017"),
        Not(Not(EqualTo(("offset",), 1))),
    ],
)
def test_what_is_not_exact_is_left_to_spark(log: Path, left: Filter) -> None:
    assert len(read(log, [left])) == 230


def planned(log: Path, **options: str) -> tuple[DataSourceReader, Any]:
    made = source(log, **options)
    reader = made.reader(made.schema())
    return reader, reader.partitions()


def test_compaction_after_planning_neither_loses_nor_doubles(log: Path) -> None:
    reader, portions = planned(log)
    compact(log, 0)
    compact(log, 1)
    assert names(rows_of(reader, portions)) == EVERY
    assert names(read(log)) == EVERY


def test_rows_that_retention_took_after_planning(log: Path) -> None:
    reader, portions = planned(log)
    lenient, portions_too = planned(log, failOnDataLoss="false")
    expire(log, 1, 30)
    with pytest.raises(SparkError, match=r"slot 1: offset 0 is gone.* before 30; option failOnDataLoss=false"):
        rows_of(reader, portions)
    assert names(rows_of(lenient, portions_too)) == [name for name in EVERY if name[0] == 0 or name[1] >= 30]
    assert names(read(log)) == [name for name in EVERY if name[0] == 0 or name[1] >= 30]


def test_a_damaged_segment_is_never_served(log: Path) -> None:
    segment = open_log(log).segments(1)[0]
    file = log / segment.path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(OutputError, match=segment.path):
        read(log)
    assert len(read(log, [EqualTo(("slot",), 0)])) == 150


def test_what_a_cluster_that_has_ended_left_unsealed_is_read_as_well(log: Path) -> None:
    disk = LocalDisk(log)
    writer = SlotWriter(disk, disk, 1, Claim("run", 1))
    writer.append([matched(1)], NOON_US)
    with join(disk):
        assert names(read(log)) == EVERY, "the cluster runs"
    writer.close()
    streaming = stream(log)
    start = streaming.initialOffset()
    assert streaming.latestOffset(start, ReadAllAvailable()) == {"0": 150, "1": 83}
    assert names(read(log)) == [*EVERY, (1, 80), (1, 81), (1, 82)]


def stream(path: Path, **options: str) -> StreamReader:
    made = source(path, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def test_a_stream_reads_each_row_once(log: Path) -> None:
    reader = stream(log, maxOffsetsPerTrigger="37")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(37)
    start, found, batches = reader.initialOffset(), [], 0
    rng = random.Random(3)
    written = [150, 80, 0]
    while True:
        end = reader.latestOffset(start, limit)
        if end == start:
            break
        portions = reader.partitions(start, end)
        if batches % 3 == 1:
            compact(log, batches % 2)
        rows = rows_of(reader, portions)
        assert len(rows) <= 37
        assert names(rows_of(stream(log), stream(log).partitions(start, end))) == names(rows), "a batch repeats itself"
        found += rows
        start = end
        batches += 1
        if batches < 8:
            slot = rng.randrange(3)
            append(log, slot, readings(1000 * batches, 20))
            written[slot] += 20
    assert batches > 8
    assert written[2] > 0
    assert names(found) == [(slot, offset) for slot in range(3) for offset in range(written[slot])]
    assert reader.reportLatestOffset() == start
    reader.commit(start)


def test_where_a_stream_starts(log: Path) -> None:
    assert stream(log).initialOffset() == {"0": 0, "1": 0}
    assert stream(log, startingOffsets="latest").initialOffset() == {"0": 150, "1": 80}
    assert stream(log, startingOffsets='{"1": 33}').initialOffset() == {"0": 0, "1": 33}
    assert stream(log).getDefaultReadLimit() == ReadAllAvailable()
    expire(log, 0, 100)
    assert stream(log).initialOffset() == {"0": 100, "1": 0}


def test_available_now_stops_at_what_was_there(log: Path) -> None:
    reader = stream(log, maxOffsetsPerTrigger="200")
    reader.prepareForTriggerAvailableNow()
    append(log, 0, readings(500, 10))
    append(log, 4, readings(600, 10))
    start: dict[str, int] = {"0": 0}
    while (end := reader.latestOffset(start, ReadMaxRows(200))) != start:
        start = end
    assert start == {"0": 150, "1": 80, "4": 0}
    assert reader.latestOffset({"0": 160, "1": 80}, ReadAllAvailable()) == {"0": 160, "1": 80, "4": 0}


def test_a_stream_whose_rows_are_gone(log: Path) -> None:
    expire(log, 0, 100)
    start = {"0": 60, "1": 0}
    reader = stream(log)
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(SparkError, match=r"slot 0: offset 60 is gone.* before 100"):
        reader.partitions(start, end)
    lenient = stream(log, failOnDataLoss="false")
    assert lenient.latestOffset(start, ReadMaxRows(65)) == {"0": 125, "1": 40}
    rows = rows_of(lenient, lenient.partitions(start, lenient.latestOffset(start, ReadAllAvailable())))
    assert names(rows) == [name for name in EVERY if name[0] == 1 or name[1] >= 100]


def test_rows_that_were_lost_to_damage_are_named(log: Path) -> None:
    held = SlotLog(LocalDisk(log), 1, Claim("run", 1))
    held.commit(Change(why="seal", first=0, next=85, lost=[Lost(80, 84, "damaged-wal-1")]))
    words = "slot 1: offsets 80 to 84 were lost to damage of damaged-wal-1; option failOnDataLoss=false reads what"
    with pytest.raises(SparkError, match=words):
        read(log)
    start, end = {"0": 0, "1": 0}, {"0": 150, "1": 85}
    with pytest.raises(SparkError, match=words):
        stream(log).partitions(start, end)
    before = stream(log)
    assert names(rows_of(before, before.partitions(start, {"0": 150, "1": 80}))) == EVERY, "none of them is lost"
    assert names(read(log, failOnDataLoss="false")) == EVERY
    lenient = stream(log, failOnDataLoss="false")
    assert names(rows_of(lenient, lenient.partitions(start, end))) == EVERY


def test_a_checkpoint_of_another_log(log: Path) -> None:
    with pytest.raises(SparkError, match="slot 1: the query has read up to offset 90"):
        stream(log).latestOffset({"0": 150, "1": 90}, ReadAllAvailable())
    with pytest.raises(SparkError, match="slot 1: the checkpoint names offsets up to 90, and the log ends at 80"):
        stream(log).partitions({"1": 70}, {"1": 90})
    with pytest.raises(SparkError, match=r"slot 9: .* ends at 0"):
        stream(log).partitions({}, {"9": 1})


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no matched output"):
        read(tmp_path)


def test_small_segments_share_a_task(tmp_path: Path) -> None:
    for number in range(6):
        append(tmp_path, number % 2, readings(10 * number, 10))
    made = source(tmp_path)
    portions = made.reader(made.schema()).partitions()
    assert [len(portion.pieces) for portion in portions if isinstance(portion, Portion)] == [3, 3]
    assert LocalDisk(tmp_path).names("date=2017-06-01")
