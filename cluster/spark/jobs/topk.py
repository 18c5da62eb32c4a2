"""`topk`: the k highest readings of each quantity in each sliding window.

The analytic twin of CUPUS's top-k/w subscriptions (deliverable D4.5.1, sections 2.2.2 and 4.4.2): windows of length w
that begin at every whole multiple of the slide since 1970, over the readings' own time. Of equal values the more
recent reading goes first, as CUPUS breaks ties, then the station by name, then slot and offset, so that the answer is
one and the same.

The k highest of a window are among the k highest of each of its slides; so readings are first thinned out slide by
slide, and a stream needs no more of the past than the table itself: the k highest of (those in the table, those of the
batch). No watermark: a late reading takes its place however late it is. To apply a batch twice changes nothing, as
a reading is known by its slot and offset.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.readings import COLUMNS as COLUMNS
from cluster.spark.jobs.readings import readings
from cluster.spark.jobs.tables import MONTH, PART, Result, Stream, Table, replace_file

TOP = Table("topk", ("quantity", "start", "rank"), month_of="start")
ORDER = [("value", "descending"), ("time", "descending"), ("station", "ascending"), ("slot", "ascending")]


def top(found: DataFrame, k: int, window_s: int, slide_s: int) -> DataFrame:
    """Return the k highest readings of each quantity and window.

    Columns: quantity, start, end (UTC), rank (1 is the highest), station, value, time, slot, offset.
    """
    pane = F.window("moment", f"{slide_s} seconds").alias("pane")
    in_pane = Window.partitionBy("quantity", "pane").orderBy(*_order())
    named = found.select("quantity", "station", "value", "time", "moment", "slot", "offset", pane)
    few = named.withColumn("place", F.row_number().over(in_pane)).where(F.col("place") <= k).drop("pane", "place")
    span = F.window("moment", f"{window_s} seconds", f"{slide_s} seconds").alias("span")
    in_window = Window.partitionBy("quantity", "span").orderBy(*_order())
    ranked = few.select("*", span).withColumn("rank", F.row_number().over(in_window)).where(F.col("rank") <= k)
    return ranked.select(
        "quantity",
        F.col("span.start").alias("start"),
        F.col("span.end").alias("end"),
        *("rank", "station", "value", "time", "slot", "offset"),
    )


def highest(found: DataFrame, k: int) -> DataFrame:
    """Return the k highest readings of each quantity: quantity, rank, station, value, time, slot, offset."""
    over = Window.partitionBy("quantity").orderBy(*_order())
    ranked = found.withColumn("rank", F.row_number().over(over)).where(F.col("rank") <= k)
    return ranked.select("quantity", "rank", "station", "value", "time", "slot", "offset")


def batch(log: DataFrame, options: JobOptions) -> list[Result]:
    """Return the table."""
    return [Result(TOP, top(readings(log, options.columns), options.k, options.window_s, options.slide_s))]


def follow(log: DataFrame, options: JobOptions) -> list[Stream]:
    """Return a stream that keeps the table."""

    def on_frame(rows: DataFrame, number: int, folder: Path) -> None:
        merge(folder, top(rows, options.k, options.window_s, options.slide_s).toArrow(), options.k)

    return [Stream(TOP, readings(log, options.columns), mode="append", on_frame=on_frame)]


def merge(folder: Path, rows: pa.Table, k: int) -> None:
    """Put the k highest of the table's rows and these into the table, window by window."""
    months: dict[str, list[dict[str, object]]] = {}
    for row in rows.to_pylist():
        months.setdefault(f"{row['start']:%Y-%m}", []).append(row)
    for month, fresh in sorted(months.items()):
        file = folder / TOP.name / f"{MONTH}={month}" / PART
        before = pq.ParquetFile(file).read().to_pylist() if file.exists() else []
        windows: dict[tuple[object, object], dict[tuple[object, object], dict[str, object]]] = {}
        for row in [*before, *fresh]:
            windows.setdefault((row["quantity"], row["start"]), {})[row["slot"], row["offset"]] = row
        kept = []
        for candidates in windows.values():
            best = sorted(candidates.values(), key=_key)[:k]
            kept += [{**row, "rank": rank} for rank, row in enumerate(best, 1)]
        replace_file(file, pa.Table.from_pylist(kept, rows.schema).sort_by([(key, "ascending") for key in TOP.keys]))


def _order() -> list[Column]:
    return [
        F.col("value").desc(),
        F.col("time").desc(),
        F.col("station").asc_nulls_first(),
        F.col("slot").asc(),
        F.col("offset").asc(),
    ]


def _key(row: dict[str, object]) -> tuple[object, ...]:
    value, time = row["value"], row["time"]
    assert isinstance(value, float)
    return (-value, -time.timestamp(), row["station"] or "", row["slot"], row["offset"])  # type: ignore[attr-defined]
