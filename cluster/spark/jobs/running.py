"""Runs the jobs: reads the log, has results written, shows how far it is.

run_batch(spark, "series", log, options, folder)         -> the tables' folders, each replaced as a whole
run_follow(spark, "series", log, options, folder, ...)   until it is stopped, or has caught up
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cluster.errors import SparkError
from cluster.spark import frames
from cluster.spark.jobs import delay, exceedances, interest, series, store, tables, topk
from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.tables import Stream

Show = Callable[[str], None]

JOBS: dict[str, ModuleType] = {
    "store": store,
    "series": series,
    "exceedances": exceedances,
    "topk": topk,
    "interest": interest,
    "delay": delay,
}
"""Those that make tables; `report` makes a page, see report.py."""

POLL_S = 0.25


def columns_of(name: str) -> tuple[str, ...]:
    """Return the columns of the log that a job uses."""
    found: tuple[str, ...] = JOBS[name].COLUMNS
    return found


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log is.

    path:    a folder of matched output; with format "parquet" any Parquet files with its columns.
    options: of the data source, `filter` say.
    """

    path: str
    format: str = "kittiwake"
    options: Mapping[str, str] = msgspec.field(default_factory=dict)

    def read(self, spark: SparkSession, columns: Sequence[str] | None = None) -> DataFrame:
        """Return what is there now. columns: all that is going to be used, None for any."""
        if self.format == "kittiwake":
            return frames.read(spark, self.path, columns=columns, more=self.options)
        frame = spark.read.format(self.format).options(**self.options).load(self.path)
        return frame if columns is None else frame.select(*columns)

    def follow(self, spark: SparkSession, columns: Sequence[str] | None = None) -> DataFrame:
        """Return what is there and what comes."""
        if self.format == "kittiwake":
            return frames.follow(spark, self.path, columns=columns, more=self.options)
        reader = spark.readStream.format(self.format).options(**self.options)
        frame = reader.schema(spark.read.parquet(self.path).schema).load(self.path)
        return frame if columns is None else frame.select(*columns)


@dataclass(slots=True)
class Progress:
    """How far a stream is.

    rows: read since it started. rows_per_second: of the last batch. batch: its number, -1 before the first one.
    end: the source's own words for where the last batch ended. late: rows that came after the watermark, dropped.
    """

    rows: int = 0
    rows_per_second: float = 0.0
    batch: int = -1
    end: str = ""
    late: int = 0


def run_batch(name: str, log: DataFrame, options: JobOptions, folder: Path) -> list[Path]:
    """Compute a job's tables and put them into a folder. Raises SparkError, and pyspark's errors."""
    written = [tables.write(result, folder) for result in JOBS[name].batch(log, options)]
    if name == "interest" and interest.write_summary(folder, options) is not None:
        written.append(folder / interest.SUMMARY)
    log.sparkSession.catalog.clearCache()
    return written


def start(
    name: str, log: DataFrame, options: JobOptions, folder: Path, *, trigger_s: float | None
) -> list[StreamingQuery]:
    """Start a job's streams. trigger_s: seconds between batches; None reads what is there and ends."""
    queries = []
    for stream in JOBS[name].follow(log, options):
        tables.check_stream(folder, stream.table)
        writer = stream.frame.writeStream.queryName(stream.table.name).outputMode(stream.mode)
        writer = writer.option("checkpointLocation", str(tables.checkpoint(folder, stream.table)))
        writer = writer.foreachBatch(_applier(stream, folder))
        if trigger_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(1000 * trigger_s)} milliseconds")
        queries.append(writer.start())
    return queries


def follow(
    queries: list[StreamingQuery], show: Callable[[dict[str, Progress]], None], stopped: Callable[[], bool]
) -> None:
    """Wait until the queries end or `stopped` says so, and stop them cleanly: the batch underway is done, or undone.

    show: called now and then with the progress of each query.
    Raises: SparkError when a query failed.
    """
    progress = {query.name or str(query.id): Progress() for query in queries}
    try:
        while not stopped():
            # Asked before the look: what a query does between the two shows in the next one.
            active = any(query.isActive for query in queries)
            for query, one in zip(queries, progress.values(), strict=True):
                _look(query, one)
            show(progress)
            _raise_failed(queries)
            if not active:
                return
            time.sleep(POLL_S)
    finally:
        for query in queries:
            query.stop()


def behind(source: Input, progress: Progress) -> int | None:
    """Return how many offsets are committed that the stream has not read; None where the source cannot say."""
    if source.format != "kittiwake":
        return None
    from cluster.output.reader import open_log

    log = open_log(source.path)
    log.refresh()
    there = log.slots()
    try:
        read = {int(slot): int(next) for slot, next in json.loads(progress.end or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return None
    return sum(max(0, one.next - max(one.first, read.get(slot, 0))) for slot, one in there.items())


def _applier(stream: Stream, folder: Path) -> Callable[[DataFrame, int], None]:
    def apply(rows: DataFrame, number: int) -> None:
        if stream.on_frame is not None:
            stream.on_frame(rows, number, folder)
            return
        found = rows.toArrow()
        if stream.apply is not None:
            stream.apply(found, number, folder)
        else:
            tables.upsert(folder, stream.table, found)

    return apply


def _look(query: StreamingQuery, progress: Progress) -> None:
    for one in query.recentProgress:
        seen: dict[str, Any] = one if isinstance(one, dict) else json.loads(one.json)
        if seen["batchId"] <= progress.batch or not seen["numInputRows"]:
            continue
        progress.batch = seen["batchId"]
        progress.rows += seen["numInputRows"]
        progress.rows_per_second = seen.get("processedRowsPerSecond") or 0.0
        progress.late += sum(state.get("numRowsDroppedByWatermark", 0) for state in seen.get("stateOperators", ()))
        end = seen["sources"][0].get("endOffset") if seen.get("sources") else None
        progress.end = end if isinstance(end, str) else json.dumps(end)


def _raise_failed(queries: list[StreamingQuery]) -> None:
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise SparkError(f"{query.name}: {first_line(failure)}") from failure


def first_line(error: Exception) -> str:
    """Return what an error of Spark says, without its stacks; of one of ours, without its class."""
    text = error.getMessage() if isinstance(error, PySparkException) else None
    lines = [line.strip() for line in (text or str(error)).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("cluster.") or "Error: " in line]
    found = (ours or lines or [type(error).__name__])[-1 if ours else 0]
    return re.sub(r"^cluster(\.\w+)+: ", "", found)


@contextmanager
def watched(spark: SparkSession, show: Show) -> Iterator[None]:
    """Show how many of Spark's tasks are done while the body runs."""
    done = threading.Event()

    def look() -> None:
        tracker = spark.sparkContext.statusTracker()
        finished, last = 0, set[int]()
        while not done.wait(POLL_S):
            try:
                active = set(tracker.getActiveStageIds())
                stages = [tracker.getStageInfo(stage) for stage in active]
            except (Py4JError, OSError):
                return  # the JVM is gone, and whoever runs the body hears of it
            finished += len(last - active)
            last = active
            known = [stage for stage in stages if stage is not None]
            total = sum(stage.numTasks for stage in known)
            if total:
                tasks = f"{sum(stage.numCompletedTasks for stage in known)} of {total} tasks"
                show(f"{finished} stages done, {tasks} of those that run")

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
