"""The benchmark of Spark at a small size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from bench import spark as bench


def test_it_measures_and_counts(spark: SparkSession, tmp_path: Path) -> None:
    small = ["--rows", "1500", "--slots", "2", "--repeats", "1", "--trigger-s", "1", "--warm-up-s", "0"]
    live = ["--stream-rate", "300", "--stream-s", "4", "--write-s", "0"]
    values = bench.measure(spark, bench.parser().parse_args([*small, *live, "--folder", str(tmp_path)]))
    assert (values["rows"], values["lost"], values["doubled"]) == (1500 + 1200, 0, 0)
    assert values["ours_rows_per_second"] > 0
    assert values["parquet_rows_per_second"] > 0
    assert values["streaming_rows_per_second"] > 0
    assert 5 < values["bytes_per_row"] < 500
    assert set(values["shapes"]) == {"all", "named", "sums", "unnamed"}
    for found in values["shapes"].values():
        assert found["ratio"] > 0
        assert len(found["ours_s"]) == len(found["parquet_s"]) == 1
    delay = values["streaming_delay_s"]
    assert delay["rows"] == 1200
    assert 0 < delay["p50"] <= delay["p95"] <= delay["max"]
    assert 0 < delay["segments"]["left"] <= delay["segments"]["sealed"]
    assert values["segment_age_s"] == 1
    assert set(values["bars"]) == {"read_ratio", "named_read_ratio", "streaming_delay_p95_s"}
    assert not list(tmp_path.iterdir())


def test_what_is_lost_and_doubled() -> None:
    found = pa.table({"slot": np.array([0, 0, 0, 1, 1]), "offset": np.array([0, 1, 1, 0, 5])})
    count = bench.Count()
    count.compare({0: 3, 1: 2, 2: 4}, found)
    assert (count.lost, count.doubled) == (1 + 4, 1)
