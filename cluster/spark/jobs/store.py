"""`store`: the log into a table of its own, by day and station, exactly once, for as long as it grows.

    DIR/store/day=2017-01-31/station=Retiro/batch-000000000012.parquet

A row of the log becomes a row here, with the columns that one asks for first taken out of the maps: station, quantity,
value (null where `quantity` names none), lat, lon, time. The day is that of the reading's own time, in the time zone,
so a late publication lies with the day that it tells of.

Once. Spark gives the rows in numbered batches, and gives a batch that it is not sure of again, with the same rows. A
batch is written aside, synced, and each file renamed to a name that follows from the batch's number: what a crash left
of it is overwritten by the same. At any moment a row is there once or not yet. With `delta` a batch is one commit of
a Delta Lake table that bears (this store's id, the batch's number) as its transaction, and a number that the table has
already is passed over.

Without --follow the same is done for what is there, and goes on from there the next time.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.readings import event_time, moment, number
from cluster.spark.jobs.tables import Stream, Table, sync_folder

COLUMNS = (
    *("slot", "offset", "epoch", "publisher", "instance", "sequence"),
    *("time_published", "time_accepted", "time_released"),
    *("numbers", "integers", "strings", "flags", "nulls", "subscriptions", "clients"),
)
STORE = Table("store", ("slot", "offset"))
DELTA = Table("store_delta", ("slot", "offset"))
STAGING = "_staging"
DIGITS = 12


def rows_to_store(log: DataFrame, options: JobOptions) -> DataFrame:
    """Return the log's rows as they are stored."""
    columns = options.columns
    time = event_time(columns)
    return log.select(
        F.to_date(F.from_utc_timestamp(moment(time, columns), columns.timezone)).alias("day"),
        F.col("strings")[columns.station].alias("station"),
        F.col("strings")[columns.quantity].alias("quantity"),
        number(F.col("strings")[columns.quantity]).alias("value"),
        number(columns.latitude).alias("lat"),
        number(columns.longitude).alias("lon"),
        time.alias("time"),
        *COLUMNS,
    )


def follow(log: DataFrame, options: JobOptions) -> list[Stream]:
    """Return the stream."""
    frame = rows_to_store(log, options)
    if options.delta:
        return [Stream(DELTA, frame, mode="append", on_frame=append_to_delta)]
    return [Stream(STORE, frame, mode="append", on_frame=put)]


def put(rows: DataFrame, batch: int, folder: Path) -> None:
    """Write a batch into the Parquet table, the first time or again."""
    staging = folder / STORE.name / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    place = rows.repartition("day", "station").sortWithinPartitions("day", "station", "time", "slot", "offset")
    # More rows a file than a batch can have: one file for each day and station, so that its name is known beforehand.
    place.write.option("maxRecordsPerFile", 0).partitionBy("day", "station").parquet(str(staging))
    touched = set()
    for written in sorted(staging.rglob("part-*.parquet")):
        with open(written, "rb") as file:
            os.fsync(file.fileno())
        target = folder / STORE.name / written.parent.relative_to(staging)
        target.mkdir(parents=True, exist_ok=True)
        written.replace(target / f"batch-{batch:0{DIGITS}}{written.suffix}")
        touched.add(target)
    for target in sorted(touched):
        sync_folder(target)
    for parent in sorted({target.parent for target in touched} | {folder / STORE.name}):
        sync_folder(parent)
    shutil.rmtree(staging, ignore_errors=True)


def append_to_delta(rows: DataFrame, batch: int, folder: Path) -> None:
    """Commit a batch to the Delta Lake table unless it is there. A batch is held in memory."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    place = str(folder / DELTA.name)
    app = store_id(folder)
    if DeltaTable.is_deltatable(place):
        last = DeltaTable(place).transaction_version(app)
        if last is not None and last >= batch:
            return
    write_deltalake(
        place,
        rows.toArrow(),
        mode="append",
        partition_by=["day", "station"],
        commit_properties=CommitProperties(app_transactions=[Transaction(app, batch)]),
    )


def store_id(folder: Path) -> str:
    """Return the id under which batches are counted in the Delta table: one for the life of the stream's checkpoint."""
    note = folder / "_checkpoints" / f"{DELTA.name}.id"
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        aside = note.with_suffix(".new")
        aside.write_text(f"kittiwake-store-{uuid.uuid4()}\n", encoding="utf-8")
        aside.replace(note)
    return note.read_text(encoding="utf-8").strip()
