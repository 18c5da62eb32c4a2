"""A streaming query that is killed, and one whose log changes under it: each row once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark import kills
from tests.spark.query import finish, start
from tests.spark.rows import append, compact, expire, readings


def test_killed_in_the_middle_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    outcome = kills.run(spark, tmp_path, kills=3, seed=21)
    assert outcome.at == ["writing", "in_sink", "planned"]
    assert outcome.rows > 500
    assert (outcome.lost, outcome.doubled) == (0, 0)


def test_segments_come_and_are_merged_while_a_query_follows(spark: SparkSession, tmp_path: Path) -> None:
    log, sink = tmp_path / "log", tmp_path / "sink"
    append(log, 0, readings(0, 300))
    query = start(spark, log, tmp_path / "checkpoint", sink, 400, processingTime="0 seconds")
    try:
        for turn in range(1, 6):
            append(log, 0, readings(300 * turn, 200))
            append(log, turn % 3 + 1, readings(1000 * turn, 50))
            compact(log, 0)
            query.processAllAvailable()
    finally:
        query.stop()
    rows = [(row["slot"], row["offset"]) for row in spark.read.parquet(str(sink)).select("slot", "offset").collect()]
    assert sorted(rows) == [(0, offset) for offset in range(1300)] + [
        (slot, offset) for slot, count in ((1, 50), (2, 100), (3, 100)) for offset in range(count)
    ]


def test_rows_that_are_gone_end_the_query_with_their_name(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, 0, readings(0, 40))
    checkpoint, sink = tmp_path / "checkpoint", tmp_path / "sink"
    finish(lambda: start(spark, log, checkpoint, sink, availableNow=True))
    append(log, 0, readings(40, 40))
    append(log, 0, readings(80, 40))
    expire(log, 0, 80)
    gone = "slot 0: offset 40 is gone, retention has removed what was before 80; option failOnDataLoss=false"
    with pytest.raises(PySparkException, match=gone):
        finish(lambda: start(spark, log, checkpoint, sink, availableNow=True))
