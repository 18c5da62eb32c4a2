"""The README's example for a notebook, run as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cluster.readings.generator import CityGenerator
from tests.spark.query import CAME_TOO_LATE
from tests.spark.rows import append, make_row

README = Path(__file__).parents[2] / "README.md"
HOUR_US = 3_600_000_000
START_US = 1_735_689_600_000_000  # 2025-01-01


def test_the_example(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"<!-- spark:begin -->\n```python\n(.*)```\n<!-- spark:end -->", README.read_text(), re.DOTALL)
    assert found
    program = found[1]
    assert len([line for line in program.splitlines() if line and not line.startswith("#")]) <= 20
    rows = [
        make_row(number, reading, time_us=START_US + number * HOUR_US // 100)
        for number, reading in enumerate(CityGenerator(600, seed=3))
    ]
    append(tmp_path / "out", 0, rows[::2])
    append(tmp_path / "out", 1, rows[1::2])
    for name in ("out/", "state/", "hours/"):  # relative paths are of the folder in which the JVM was started
        assert f'"{name}"' in program
        program = program.replace(f'"{name}"', repr(str(tmp_path / name)))
    while True:
        try:
            exec(compile(program, "README.md", "exec"), {})
            break
        except PySparkException as error:
            if CAME_TOO_LATE not in str(error):
                raise
    said = capsys.readouterr().out
    high = [row for row in rows if row.attributes["station_type"] == "UT" and _no2(row.attributes.get("no2")) > 15]
    stations = {str(row.attributes["station"]) for row in high}
    assert stations
    for station in stations:
        count = sum(row.attributes["station"] == station for row in high)
        assert re.search(rf"\|\s*{re.escape(station)}\|\s*{count}\|", said)
    hours = spark.read.parquet(str(tmp_path / "hours")).collect()
    # The last hour is not over: the watermark has not passed its end.
    assert sum(row["count"] for row in hours) == 500


def _no2(value: object) -> float:
    return value if isinstance(value, float) else float("-inf")
