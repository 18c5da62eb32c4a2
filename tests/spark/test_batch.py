"""Through Spark itself: all of a log, parts of it, and the same by Spark's own Parquet reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cluster.language.filter import parse
from cluster.output.reader import open_log
from cluster.output.rows import attributes_of
from tests.spark.rows import DAY_US, NOON_US, append, readings


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("output")
    append(path, 0, readings(0, 400))
    append(path, 0, readings(400, 100, time_us=NOON_US + DAY_US, epoch=2))
    append(path, 3, readings(500, 300))
    return path


def ours(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("kittiwake").options(**options).load(str(path))


def collected(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row["slot"], row["offset"]))


def test_spark_reads_what_was_written(spark: SparkSession, log: Path) -> None:
    rows = collected(ours(spark, log))
    written = [*readings(0, 400), *readings(400, 100, time_us=NOON_US + DAY_US, epoch=2), *readings(500, 300)]
    assert [row["sequence"] for row in rows] == [row.sequence for row in written]
    assert [attributes_of(row.asDict()) for row in rows] == [row.attributes for row in written]
    assert [row["subscriptions"] for row in rows] == [row.subscriptions for row in written]
    plain = spark.read.parquet(str(log))
    assert plain.columns == ours(spark, log).columns
    assert collected(plain) == rows


def test_filters_and_columns_reach_the_source(
    spark: SparkSession, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = ours(spark, log, columns="slot,offset,time_accepted,date").where(
        "date = '2017-06-02' and offset >= 450 and time_accepted > timestamp'2017-06-02 12:00:00.060'"
    )
    assert [row["offset"] for row in collected(frame)] == list(range(461, 500))
    frame.explain()
    assert "Filter (" not in capsys.readouterr().out, "Spark was left a filter that the source applies"
    chosen = spark.read.format("kittiwake").schema("date date, slot int, offset bigint").load(str(log))
    assert chosen.where("slot = 3 or offset < 10").count() == 310


def test_our_filter_is_the_matchers(spark: SparkSession, log: Path) -> None:
    text = "no2 > 40 and station in ('Retiro', 'Sanchinarro') and counter != 9007199254740993"
    rows = collected(ours(spark, log, filter=text))
    assert rows == [row for row in collected(ours(spark, log)) if parse(text).matches(attributes_of(row.asDict()))]
    assert 0 < len(rows) < 400


def test_sql_over_a_view(spark: SparkSession, log: Path) -> None:
    ours(spark, log).createOrReplaceTempView("matched")
    found = spark.sql(
        "select strings['station'] as station, count(*) as n from matched group by 1 order by 1"
    ).collect()
    assert [tuple(row) for row in found] == [
        ("Casa de Campo", 200), ("Pza. de España", 200), ("Retiro", 200), ("Sanchinarro", 200),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"filter": "no2 >"}, "option filter: expected a value, found the end at position 5"),
        ({"columns": "no2"}, "no column no2; there are offset, slot"),
        ({"startingOffset": "latest"}, "unknown option startingoffset"),
    ],
)
def test_what_is_wrong_is_named(spark: SparkSession, log: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException) as error:
        ours(spark, log, **options).count()
    assert words in str(error.value)


def test_damage_is_named_and_never_served(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, 0, readings(0, 50))
    segment = open_log(tmp_path).segments()[0]
    file = tmp_path / segment.path
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PySparkException, match=segment.path):
        ours(spark, tmp_path).count()
