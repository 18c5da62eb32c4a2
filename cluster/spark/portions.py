"""What one Spark task reads: segments, or parts of them, and how they become batches.

A portion names its segments as the manifest listed them when it was planned. Compaction may move their rows before the
task runs; the log then finds the same rows, by slot, day and offsets, where they are now. Rows that retention has
removed end the query, or are passed over where it said so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import Filter, InputPartition

from cluster.errors import SparkError
from cluster.output.disk import open_disk
from cluster.output.errors import OffsetsGoneError
from cluster.output.manifest import Segment
from cluster.output.reader import Log
from cluster.spark import evaluate, pruning
from cluster.spark.options import Options
from cluster.spark.pruning import DATE

BYTES_MIN, BYTES_MAX = 2 * 2**20, 16 * 2**20
"""Bytes of segments for one task: two tasks a core where there is little, and never so much that one is long at it."""

BATCH_ROWS = 16_384
"""Rows in one batch on the socket to Spark."""

_log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Rows of a segment: offsets from `first` up to before `stop`, or all of them (None, None)."""

    segment: Segment
    first: int | None = None
    stop: int | None = None


class Portion(InputPartition):
    """What one task reads, in this order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)


def portions(pieces: Sequence[Piece], cores: int) -> list[Portion]:
    """Return pieces in portions for about two tasks a core, one slot each, in their order."""
    total = sum(piece.segment.bytes for piece in pieces)
    bytes_max = max(BYTES_MIN, min(BYTES_MAX, total // (2 * cores)))
    found: list[Portion] = []
    together: list[Piece] = []
    size = 0
    for piece in pieces:
        if together and (size + piece.segment.bytes > bytes_max or piece.segment.slot != together[0].segment.slot):
            found.append(Portion(together))
            together, size = [], 0
        together.append(piece)
        size += piece.segment.bytes
    return [*found, Portion(together)] if together else found


def read_portion(
    portion: Portion, schema: pa.Schema, options: Options, filters: Sequence[Filter] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a portion as batches of the schema, no empty ones.

    filters: exact ones of Spark (see pruning), which the rows have to pass as well as the options' filter.
    Raises: SparkError if rows are gone; OutputError for a segment that is damaged.
    """
    log = Log(open_disk(options.path))
    plain = [name for name in schema.names if name != DATE]
    needed = list(plain)
    if options.filter is not None:
        needed += [name for name in evaluate.COLUMNS if name not in plain]
    if not needed:
        needed = ["slot"]  # `date` alone: the rows are still to be counted
    pushed = pruning.expression(filters)
    for piece in portion.pieces:
        wanted = pushed
        if piece.first is not None and piece.stop is not None:
            inside = (pc.field("offset") >= piece.first) & (pc.field("offset") < piece.stop)
            wanted = inside if wanted is None else inside & wanted
        try:
            for batch in log.batches(piece.segment, needed, wanted, BATCH_ROWS):
                if options.filter is not None:
                    batch = batch.filter(pa.array(evaluate.true_rows(options.filter.tree, batch)))
                if batch.num_rows:
                    yield fit(batch, schema, piece.segment.date)
        except OffsetsGoneError as error:
            gone(options, error)


def fit(batch: pa.RecordBatch, schema: pa.Schema, day: str) -> pa.RecordBatch:
    """Return the batch with the schema's columns, in its order and of its types."""
    columns: list[Any] = []
    for field in schema:
        if field.name == DATE:
            constant = pa.scalar(date.fromisoformat(day), pa.date32())
            columns.append(pa.repeat(constant, batch.num_rows))
            continue
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def gone(options: Options, error: OffsetsGoneError) -> None:
    """End the query because of rows that are gone, unless it is to go on."""
    if options.fail_on_data_loss:
        raise SparkError(f"{error}; option failOnDataLoss=false reads on from there") from error
    _log.warning("%s: %s; reading on from there", options.path, error)
