"""Segments: tables of one slot and one day <-> Parquet files.

    date=2017-06-01/00003-0000000000000042-7.12.parquet       slot, first offset, writer's term, which of its segments

A segment is written under a name that begins with `_`, which Spark's own reader passes over, synced, renamed, and its
folder synced; only then may a manifest list it. Names are never used twice. A reader takes the whole file and compares
its CRC-32 with what the manifest says before it looks at any of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cluster.output.disk import Disk, write_whole
from cluster.output.errors import OutputError
from cluster.output.manifest import Segment
from cluster.output.rows import flags, int64s
from cluster.output.schema import DAY_US, SCHEMA, date_of, folder_of

ROW_GROUP = 131_072
PLAIN = SCHEMA.names[: SCHEMA.names.index("numbers")]
"""The columns that are neither map nor list."""

COMPRESSION_LEVEL = 1
"""Of zstd: 3 made segments 4 % smaller and took 1.6 times the time on Madrid's readings."""


def by_day(table: pa.Table) -> list[tuple[str, pa.Table]]:
    """Return the table's rows by the day of time_accepted, days ascending, offsets ascending within each."""
    days = np.floor_divide(int64s(table.column("time_accepted")), DAY_US)
    found = np.unique(days)
    if len(found) == 1:
        return [(date_of(int(found[0]) * DAY_US), table)]
    return [(date_of(int(day) * DAY_US), table.filter(flags(days == day))) for day in found]


def encode_segment(tables: Iterable[pa.Table]) -> tuple[bytes, int]:
    """Return the tables, one after the other, as Parquet, and their rows; no more than ROW_GROUP are kept at once."""
    sink = pa.BufferOutputStream()
    rows = 0
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=["publisher", "epoch", "slot", *_LEAVES],
        write_statistics=["offset", "slot", "epoch", "publisher", "sequence", "time_accepted", "time_released"],
    ) as writer:
        waiting: list[pa.Table] = []
        for table in tables:
            waiting.append(table)
            rows += len(table)
            if sum(map(len, waiting)) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    data: bytes = sink.getvalue().to_pybytes()
    return data, rows


_LEAVES = [
    "numbers.key_value.key",
    "integers.key_value.key",
    "strings.key_value.key",
    "strings.key_value.value",
    "flags.key_value.key",
    "nulls.list.element",
    "clients.list.element",
    "subscriptions.list.element",
]


def write_segment(disk: Disk, tables: Sequence[pa.Table], day: str, name: str) -> Segment:
    """Write the tables, rows of one slot and `day`, so that they are whole and durable; return how they are listed.

    name: what tells the file from all others of its slot that begin with the same row.
    """
    slot = int(tables[0].column("slot")[0].as_py())
    first, last = int(tables[0].column("offset")[0].as_py()), int(tables[-1].column("offset")[-1].as_py())
    data, rows = encode_segment(tables)
    folder = folder_of(day)
    full = f"{slot:05d}-{first:016d}-{name}.parquet"
    write_whole(disk, folder, full, data)
    epochs, times = (
        np.concatenate([int64s(table.column(column)) for table in tables]) for column in ("epoch", "time_accepted")
    )
    return Segment(
        path=f"{folder}/{full}",
        slot=slot,
        first=first,
        last=last,
        rows=rows,
        bytes=len(data),
        checksum=zlib.crc32(data),
        date=day,
        epoch_first=int(epochs.min()),
        epoch_last=int(epochs.max()),
        time_first_us=int(times.min()),
        time_last_us=int(times.max()),
    )


def read_segment(
    disk: Disk, segment: Segment, columns: list[str] | None = None, filter: pc.Expression | None = None
) -> pa.Table:
    """Return a segment's rows. columns: which, None for all; filter: a pyarrow expression over any columns.

    Raises: FileNotFoundError if it is not there; OutputError if it is not what the manifest says.
    """
    table = pq.ParquetFile(pa.BufferReader(_whole(disk, segment))).read(columns=None if filter is not None else columns)
    if filter is not None:
        table = table.filter(filter)
    if columns is not None:
        return table.select(columns)
    return table.cast(SCHEMA)


def read_batches(
    disk: Disk, segment: Segment, columns: list[str] | None, filter: pc.Expression | None, rows_max: int
) -> Iterator[pa.RecordBatch]:
    """Return an iterator over a segment's rows, in order, that holds the file and one batch in memory.

    filter:  a pyarrow expression over plain columns, those before `numbers`; row groups that it rules out by their
             statistics are not decoded.
    Raises:  as read_segment, at once and not at the first row.
    """
    data = _whole(disk, segment)
    return _batches(data, columns or SCHEMA.names, filter, rows_max)


def _batches(data: bytes, columns: list[str], filter: pc.Expression | None, rows_max: int) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(pa.BufferReader(data))
    if filter is None:
        yield from file.iter_batches(rows_max, columns=columns)
        return
    import pyarrow.dataset as ds  # it loads pandas where there is one, which writers need not wait for

    fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(data))
    groups = [group.id for one in fragment.split_by_row_group(filter) for group in one.row_groups]
    needed = list(dict.fromkeys([*columns, *PLAIN]))
    for batch in file.iter_batches(rows_max, row_groups=groups, columns=needed):
        yield from pa.Table.from_batches([batch]).filter(filter).select(columns).to_batches()


def _whole(disk: Disk, segment: Segment) -> bytes:
    """Return a segment's file, which is what the manifest says."""
    data = disk.read(segment.path)
    if len(data) != segment.bytes:
        raise OutputError(
            f"{len(data)} bytes, the manifest says {segment.bytes}",
            file=segment.path,
            expected=segment.bytes,
            found=len(data),
        )
    checksum = zlib.crc32(data)
    if checksum != segment.checksum:
        raise OutputError(
            f"its checksum is {checksum:08x}, the manifest says {segment.checksum:08x}",
            file=segment.path,
            expected=segment.checksum,
            found=checksum,
        )
    return data
