"""Result tables on disk: Parquet, one folder a table, in months where a table has a time.

    DIR/series_hours/month=2017-01/part.parquet        begun at another name, synced, renamed
    DIR/_checkpoints/series_hours/                     only where a stream keeps the table up to date

A finished job replaces a whole table: written beside it, then put in its place. A stream changes single rows, known by
the table's keys: the months that a batch touches are written anew, each in one rename. To apply a batch twice, as after
a crash between the table and Spark's own commit, gives the same table; so each result is there once.

The two do not mix: a table that a stream keeps is not replaced, and a stream does not begin on a finished one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cluster.errors import SparkError

CHECKPOINTS = "_checkpoints"
MONTH = "month"
PART = "part.parquet"

Apply = Callable[[pa.Table, int, Path], None]


@dataclass(frozen=True, slots=True)
class Table:
    """What a table is called, which columns make a row's key, and the timestamp or date that says its month."""

    name: str
    keys: tuple[str, ...]
    month_of: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished table, not yet computed."""

    table: Table
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class Stream:
    """A streaming frame, and what becomes of each of its batches.

    mode:  Spark's output mode: "update" for aggregates, "append" for rows as they come.
    apply: (the batch, its number, the results' folder); None: the batch's rows replace those with the same keys.
           It must not mind being called twice with the same batch.
    on_frame: instead of `apply`, for batches that are to stay with Spark.
    """

    table: Table
    frame: DataFrame
    mode: str = "update"
    apply: Apply | None = None
    on_frame: Callable[[DataFrame, int, Path], None] | None = None


def write(result: Result, folder: Path) -> Path:
    """Compute a table and put it in the place of an earlier one. Returns its folder. Raises SparkError."""
    table = result.table
    if checkpoint(folder, table).exists():
        raise SparkError(f"{folder / table.name}: a stream keeps this table; give another folder")
    fresh, old, place = (folder / f"{prefix}{table.name}" for prefix in ("_new-", "_old-", ""))
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    frame = with_month(result)
    if table.month_of is None:
        frame.repartition(1).sortWithinPartitions(*table.keys).write.parquet(str(fresh))
    else:
        frame.repartition(MONTH).sortWithinPartitions(*table.keys).write.partitionBy(MONTH).parquet(str(fresh))
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)
    return place


def with_month(result: Result) -> DataFrame:
    """Return a result's frame, with the column that says where a row lies."""
    if result.table.month_of is None:
        return result.frame
    return result.frame.withColumn(MONTH, F.date_format(result.table.month_of, "yyyy-MM"))


def upsert(folder: Path, table: Table, rows: pa.Table, gone: pa.Table | None = None) -> None:
    """Put rows into a table in the place of those with the same keys, and take out those whose keys are in `gone`.

    Cost: each month touched is read and written anew.
    """
    touched = rows if gone is None else pa.concat_tables([rows.select(list(table.keys)), gone.select(list(table.keys))])
    for month in _months(table, touched):
        place = folder / table.name / ("" if month is None else f"{MONTH}={month}")
        fresh = _of_month(table, rows, month)
        keys = _of_month(table, touched, month).select(list(table.keys))
        file = place / PART
        if file.exists():
            kept = pq.ParquetFile(file).read().join(keys, list(table.keys), join_type="left anti")
            fresh = pa.concat_tables([kept.cast(fresh.schema), fresh])
        replace_file(file, fresh.sort_by([(key, "ascending") for key in table.keys]))


def replace_file(file: Path, rows: pa.Table) -> None:
    """Write a Parquet file so that a reader sees the old one or the new one, and a crash leaves one of them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"_{file.name}.new")
    pq.write_table(rows, aside, compression="zstd")
    with open(aside, "rb") as written:
        os.fsync(written.fileno())
    aside.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path, table: Table) -> pa.Table | None:
    """Return a table's rows in the order of its keys, None if it has never been written."""
    place = folder / table.name
    if not place.is_dir():
        return None
    rows = pq.read_table(place, partitioning="hive")
    kept = [name for name in rows.column_names if name != MONTH]
    return rows.select(kept).sort_by([(key, "ascending") for key in table.keys])


def checkpoint(folder: Path, table: Table) -> Path:
    """Return where the stream that keeps a table notes how far it is."""
    return folder / CHECKPOINTS / table.name


def check_stream(folder: Path, table: Table) -> None:
    """Raise SparkError where a table has rows and no stream keeps it."""
    place = folder / table.name
    if place.exists() and any(place.iterdir()) and not checkpoint(folder, table).exists():
        raise SparkError(f"{place}: this table is there, and no stream keeps it; give another folder")


def _months(table: Table, rows: pa.Table) -> list[str | None]:
    if table.month_of is None:
        return [None] if rows.num_rows else []
    return sorted(set(_month_column(table, rows).to_pylist()))


def _of_month(table: Table, rows: pa.Table, month: str | None) -> pa.Table:
    return rows if month is None else rows.filter(pc.equal(_month_column(table, rows), month))


def _month_column(table: Table, rows: pa.Table) -> pa.ChunkedArray:
    return pc.strftime(rows[table.month_of], "%Y-%m")
