"""Spark and the matched output: how fast it reads, how late a row is, and what writing costs an exit point.

    uv run python -m bench.spark --rows 5000000 --json

    batch      a log of --rows readings in --slots slots and three days, in segments as an exit point seals them, is
               read --repeats times by ours and by Spark's own Parquet reader in turn, in each of these shapes; the
               median counts, and one reading of each goes before:
                   all      all columns into nothing
                   named    slot, time_released and numbers into nothing, for ours named by option `columns`
                   sums     count, mean and maximum of a number by slot, of columns that are named for ours
                   unnamed  the same, and nobody names them: Spark does not tell a source in Python what a query uses
               Then a streaming query takes it in ten micro-batches into Parquet files of four columns.
    streaming  the real writer (bench.spark_load) writes --stream-rate rows a second for --stream-s seconds, in segments
               of --segment-age-s; a query with a trigger of 1 s, and then another of 2 s, puts them into Parquet files.
               A row's delay is from its time_released until the sink counts the batch it is in (the time of the sink's
               own record). Rows released in the first --warm-up-s, while Spark starts, have no delay but are counted.
    writing    a cluster whose exit point writes --write-rate publications a second, against one without output, and
               --stored-rate that ask to be told when they are stored: see bench.spark_exit_point.

ours_rows_per_second, parquet_rows_per_second, read_ratio: of all columns; by shape in shapes.
named_read_ratio: the worse of named and sums.
streaming_rows_per_second; bytes_per_row: of the log's segments.
streaming_delay_s (trigger of 1 s), streaming_delay_2s_trigger_s: p50, p95, max, rows, and segments: sealed, and left
    after merging.  segment_age_s: at which that was; the product's default is 5, to which the rest of the delay adds.
writer_cpu_share: of one core.  stored_ack_ms: p50, p99, max.
rows: in all logs.  lost, doubled: by (slot, offset), over every log: batch, streaming at full speed, both live queries;
    of the cluster by the publisher's numbers.
The exit status is 1 if anything was lost or doubled, with --bars also if a figure misses its bar.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from bench.environment import environment
from bench.printing import show
from cluster.output.disk import LocalDisk
from cluster.output.manifest import Claim
from cluster.output.reader import open_log
from cluster.output.rows import Row, RowColumns
from cluster.output.slot_log import SlotLog
from cluster.readings.generator import CityGenerator
from cluster.spark import read, session

DAY_US = 86_400_000_000
START_US = 1_735_689_600_000_000
SEALED_ROWS = 60_000
"""About what a write-ahead file of the default size holds."""
MICRO_BATCHES = 10
BARS = {
    "read_ratio": 2.0,
    "named_read_ratio": 2.0,
    "streaming_delay_p95_s": 5.0,
    "writer_cpu_share": 0.3,
    "stored_ack_p99_ms": 50.0,
}
NAMED = ("slot", "time_released", "numbers")


@dataclass
class Count:
    """Rows of all logs so far, and what of them was lost or doubled."""

    rows: int = 0
    lost: int = 0
    doubled: int = 0

    def compare(self, written: dict[int, int], found: pa.Table | dict[int, tuple[int, int]]) -> None:
        """Compare the rows by slot that a log has with those found: their slots and offsets, or (rows, distinct)."""
        if not isinstance(found, dict):
            slots, offsets = (found.column(name).to_numpy() for name in ("slot", "offset"))
            found = {
                slot: (int(np.sum(slots == slot)), len(np.unique(offsets[slots == slot])))
                for slot in np.unique(slots).tolist()
            }
        for slot in written.keys() | found.keys():
            rows, distinct = found.get(slot, (0, 0))
            self.lost += max(written.get(slot, 0) - distinct, 0)
            self.doubled += rows - min(distinct, written.get(slot, 0))


@dataclass
class Figures:
    """What is printed in the end."""

    values: dict[str, object] = field(default_factory=dict)
    count: Count = field(default_factory=Count)


def fill(folder: Path, rows: int, slots: int) -> float:
    """Write a log; return the bytes of a row."""
    readings = list(CityGenerator(min(rows, 20_000), seed=1))
    for slot in range(slots):
        mine = rows // slots + (slot < rows % slots)
        log = SlotLog(LocalDisk(folder), slot, Claim())
        for first in range(0, mine, SEALED_ROWS):
            columns = RowColumns(slot)
            stop = min(first + SEALED_ROWS, mine)
            for offset in range(first, stop):
                time_us = START_US + 3 * DAY_US * offset // mine
                columns.add(
                    Row(
                        offset,
                        1 + 4 * offset // mine,
                        f"station-{offset % 24}",
                        7,
                        offset // 24 + 1,
                        time_us - 900,
                        time_us,
                        time_us + 1500,
                        readings[offset % len(readings)],
                        [1 << 20 | offset % 50, 2 << 20 | offset % 30],
                        ["dashboard", "lab"],
                    )
                )
            log.seal(columns.table(), stop)
    return sum(one.bytes for one in open_log(folder).segments()) / rows


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def into_nothing(frame: DataFrame) -> None:
    """Have all rows and columns made."""
    frame.write.format("noop").mode("overwrite").save()


def sums(frame: DataFrame) -> DataFrame:
    """Return a small table of all rows."""
    value = frame.numbers["no2"]
    return frame.groupBy("slot").agg(sql.count("*"), sql.avg(value), sql.max(value), sql.max("time_released"))


def shapes(spark: SparkSession, folder: str) -> dict[str, dict[str, Callable[[], DataFrame]]]:
    """Return the queries by shape, by whose reader."""

    def parquet() -> DataFrame:
        return spark.read.parquet(folder)

    def ours() -> DataFrame:
        return read(spark, folder)

    def named() -> DataFrame:
        return read(spark, folder, columns=NAMED)

    return {
        "all": {"ours": ours, "parquet": parquet},
        "named": {"ours": named, "parquet": lambda: parquet().select(*NAMED)},
        "sums": {"ours": lambda: sums(named()), "parquet": lambda: sums(parquet())},
        "unnamed": {"ours": lambda: sums(ours()), "parquet": lambda: sums(parquet())},
    }


def batch(spark: SparkSession, folder: Path, rows: int, repeats: int, figures: Figures) -> None:
    """Read the log both ways, in each shape."""
    found: dict[str, dict[str, Any]] = {}
    for shape, readers in shapes(spark, str(folder)).items():
        times: dict[str, list[float]] = {"ours": [], "parquet": []}
        for turn in range(repeats + 1):
            for name, made in readers.items():
                took = timed(lambda made=made: into_nothing(made()))  # type: ignore[misc]
                if turn:
                    times[name].append(took)
        median = {name: statistics.median(each) for name, each in times.items()}
        found[shape] = {
            **{f"{name}_s": [round(one, 2) for one in each] for name, each in times.items()},
            **{f"{name}_rows_per_second": round(rows / one) for name, one in median.items()},
            "ratio": round(median["ours"] / median["parquet"], 2),
        }
    for name in times:
        figures.values[f"{name}_rows_per_second"] = found["all"][f"{name}_rows_per_second"]
    figures.values["read_ratio"] = found["all"]["ratio"]
    figures.values["named_read_ratio"] = max(found[shape]["ratio"] for shape in ("named", "sums"))
    figures.values["shapes"] = found
    written = {slot: one.next for slot, one in open_log(folder).slots().items()}
    slots = read(spark, str(folder), columns=["slot", "offset"]).groupBy("slot")
    counted = slots.agg(sql.count("*"), sql.count_distinct("offset")).collect()
    figures.count.compare(written, {row[0]: (row[1], row[2]) for row in counted})
    figures.count.rows += rows


def through(spark: SparkSession, folder: Path, work: Path, rows: int, figures: Figures) -> None:
    """Have a streaming query read the log as fast as it can."""
    limit = max(1, math.ceil(rows / MICRO_BATCHES))
    frame = spark.readStream.format("kittiwake").option("maxOffsetsPerTrigger", limit).load(str(folder))
    writer = frame.select("slot", "offset", "numbers", "strings").writeStream.format("parquet")
    sink = work / "through"
    started = writer.option("checkpointLocation", str(work / "through-checkpoint")).trigger(availableNow=True)
    took = timed(lambda: settled(lambda: started.start(str(sink)), StreamingQuery.awaitTermination))
    figures.values["streaming_rows_per_second"] = round(rows / took)
    written = {slot: one.next for slot, one in open_log(folder).slots().items()}
    figures.count.compare(written, counted_rows(sink)[0])


def settled(begin: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], object]) -> None:
    """Wait for a query, then stop it; begin again if its Python process was not there within Spark's 10 s."""
    while True:
        query = begin()
        try:
            wait(query)
            return
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
        finally:
            query.stop()


def counted_rows(sink: Path, columns: tuple[str, ...] = ("slot", "offset")) -> tuple[pa.Table, Any]:
    """Return the rows that a file sink counts, and for each when it did, in seconds since 1970."""
    tables: list[pa.Table] = []
    times: list[Any] = []
    seen: set[str] = set()
    records = sorted((sink / "_spark_metadata").glob("[0-9]*"), key=lambda one: int(one.name.split(".")[0]))
    for record in records:
        when = record.stat().st_mtime_ns / 1e9
        for line in record.read_text().splitlines()[1:]:
            path = unquote(urlparse(json.loads(line)["path"]).path)
            if path not in seen:  # a compacted record has the former ones' files again
                seen.add(path)
                tables.append(pq.ParquetFile(path).read(columns=list(columns)))
                times.append(np.full(len(tables[-1]), when))
    if not tables:
        empty = pa.table({name: pa.array([], pa.int64()) for name in columns})
        return empty, np.empty(0)
    return pa.concat_tables(tables), np.concatenate(times)


def live(spark: SparkSession, work: Path, trigger_s: float, options: argparse.Namespace, figures: Figures) -> None:
    """Follow the real writer; see the module."""
    folder, sink = work / f"live-{trigger_s:g}", work / f"live-sink-{trigger_s:g}"
    load = start_load(folder, options.stream_rate, options.stream_s, options.segment_age_s)
    try:
        wait_for_log(folder, load)
        frame = spark.readStream.format("kittiwake").load(str(folder))
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(work / f"live-cp-{trigger_s:g}"))
        started = writer.trigger(processingTime=f"{round(1000 * trigger_s)} milliseconds")
        query = started.start(str(sink))
        written = json.loads(load.communicate(timeout=options.stream_s + 120)[0])
        settled(lambda: query if query.isActive else started.start(str(sink)), StreamingQuery.processAllAvailable)
    finally:
        load.kill()
        load.wait()
    found, times = counted_rows(sink, ("slot", "offset", "time_released"))
    figures.count.compare({0: written["rows"]}, found)
    figures.count.rows += written["rows"]
    # Spark writes timestamps of nanoseconds.
    released = found.column("time_released").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() / 1e6
    late = (times - released)[released >= written["first_us"] / 1e6 + options.warm_up_s]
    name = "streaming_delay_s" if trigger_s == 1 else f"streaming_delay_{trigger_s:g}s_trigger_s"
    figures.values[name] = {
        "p50": round(float(np.percentile(late, 50)), 2) if len(late) else None,
        "p95": round(float(np.percentile(late, 95)), 2) if len(late) else None,
        "max": round(float(late.max()), 2) if len(late) else None,
        "rows": len(late),
        "segments": {"sealed": written["segments"], "left": len(open_log(folder).segments())},
    }
    figures.values["segment_age_s"] = options.segment_age_s


def start_load(folder: Path, rate: float, seconds: float, segment_age_s: float) -> subprocess.Popen[str]:
    """Start bench.spark_load."""
    arguments = ["--folder", folder, "--rate", rate, "--seconds", seconds, "--segment-age-s", segment_age_s]
    return subprocess.Popen(
        [sys.executable, "-m", "bench.spark_load", *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_log(folder: Path, load: subprocess.Popen[str]) -> None:
    """Return when the log has rows."""
    while True:
        if load.poll() is not None:
            raise RuntimeError(f"the writer ended with status {load.returncode}")
        if any(folder.glob("date=*/[0-9]*.parquet")):
            return
        time.sleep(0.05)


def writing(options: argparse.Namespace, figures: Figures) -> None:
    """Have exit points write, in a process of its own: Ray and Spark do not meet."""
    arguments: dict[str, object] = {
        "--rate": options.write_rate,
        "--seconds": options.write_s,
        "--stored-rate": options.stored_rate,
        "--stored-s": options.write_s,
    }
    if options.folder is not None:
        arguments["--folder"] = options.folder
    command = [sys.executable, "-m", "bench.spark_exit_point"]
    done = subprocess.run(
        [*command, *(str(one) for pair in arguments.items() for one in pair)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError(f"bench.spark_exit_point ended with status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    count = Count(found.pop("rows"), found.pop("lost"), found.pop("doubled"))
    figures.count.rows += count.rows
    figures.count.lost += count.lost
    figures.count.doubled += count.doubled
    figures.values.update(found)


def measure(spark: SparkSession, options: argparse.Namespace) -> dict[str, Any]:
    """Run all parts; returns what is to be printed."""
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kittiwake-bench-") as folder:
        work = Path(folder)
        if options.rows:
            figures.values["bytes_per_row"] = round(fill(work / "log", options.rows, options.slots), 1)
            batch(spark, work / "log", options.rows, options.repeats, figures)
            through(spark, work / "log", work, options.rows, figures)
        if options.stream_s:
            for trigger_s in options.trigger_s:
                live(spark, work, trigger_s, options, figures)
        if options.write_s:
            writing(options, figures)
    values: dict[str, Any] = dict(figures.values)
    count = figures.count
    values |= {"rows": count.rows, "lost": count.lost, "doubled": count.doubled}
    judged = dict(values)
    if "streaming_delay_s" in values:
        judged["streaming_delay_p95_s"] = values["streaming_delay_s"]["p95"]
    if "stored_ack_ms" in values:
        judged["stored_ack_p99_ms"] = values["stored_ack_ms"]["p99"]
    values["bars"] = {
        name: judged[name] is not None and judged[name] <= bar for name, bar in BARS.items() if name in judged
    }
    return values


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    options = parser().parse_args(arguments)
    spark = session("bench", **{"spark.driver.memory": options.memory})
    try:
        values = measure(spark, options)
    finally:
        spark.stop()
    show(values | {"environment": environment()}, as_json=options.json)
    wrong = values["lost"] or values["doubled"]
    return 1 if wrong or (options.bars and not all(values["bars"].values())) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--rows", type=int, default=5_000_000, help="of the log for batch; 0 leaves the part out")
    made.add_argument("--slots", type=int, default=4)
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--stream-rate", type=float, default=2000.0)
    made.add_argument("--stream-s", type=float, default=60.0, help="0 leaves the part out")
    made.add_argument("--warm-up-s", type=float, default=20.0)
    made.add_argument("--trigger-s", type=float, nargs="+", default=[1.0, 2.0])
    made.add_argument("--segment-age-s", type=float, default=1.0, help="of streaming; the product's default is 5")
    made.add_argument("--write-rate", type=float, default=5000.0)
    made.add_argument("--stored-rate", type=float, default=1000.0)
    made.add_argument("--write-s", type=float, default=8.0, help="of each of three loads; 0 leaves the part out")
    made.add_argument("--memory", default="2g", help="of Spark's JVM")
    made.add_argument("--folder", type=Path, default=None, help="where the logs are made; a temporary place by default")
    made.add_argument("--bars", action="store_true", help="the exit status judges speed as well")
    made.add_argument("--json", action="store_true")
    return made


if __name__ == "__main__":
    sys.exit(main())
