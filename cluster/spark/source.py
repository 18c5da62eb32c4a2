"""The data source `kittiwake`: the matched output of a cluster, in batch and in Structured Streaming.

    spark.read.format("kittiwake").option("filter", "no2 > 40").load("out/").where("date = '2017-06-01'")
    spark.readStream.format("kittiwake").option("maxOffsetsPerTrigger", 100_000).load("out/")

The rows and columns are those of cluster.output.schema, and `date`. A batch read takes what is committed when it is
planned; what a cluster that has ended has left in write-ahead files is sealed first (`cluster/output/adopting.py`). A
streaming query keeps in its checkpoint the next offset of each slot, and a micro-batch is a range of offsets of each:
which rows that is never changes, whatever compaction does to the files meanwhile, so that a query that is killed and
started again repeats the batch that it had begun with the very same rows, and a sink that knows the batch's number
(Spark's own file sink, a Delta table) has each row once.

Options are in cluster.spark.options. What is gone by retention, or was lost to damage, ends the query, unless
failOnDataLoss=false. Runs on the driver and in Spark's Python workers, by PySpark's data source API (Spark 4.2 and
later, for limits per trigger).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cluster.errors import SparkError
from cluster.output.adopting import seal_ended_at
from cluster.output.errors import OffsetsGoneError
from cluster.output.reader import Log, open_log
from cluster.spark import offsets, pruning
from cluster.spark.columns import arrow_schema, spark_schema
from cluster.spark.options import Options, read_options
from cluster.spark.portions import Piece, Portion, gone, portions, read_portion

_log = logging.getLogger(__name__)


class MatchedOutput(DataSource):
    """The matched output of a cluster; see the module."""

    @classmethod
    def name(cls) -> str:
        """Return the word for `format`."""
        return "kittiwake"

    @cached_property
    def checked(self) -> Options:
        """The options, checked."""
        return read_options(self.options)

    def schema(self) -> StructType:
        """Return the columns: all, or those of the option `columns`."""
        return spark_schema(self.checked.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for one batch query."""
        return BatchReader(self.checked, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader for one streaming query."""
        return StreamReader(self.checked, schema)


class BatchReader(DataSourceReader):
    """Reads what is committed when the query is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that can be applied exactly; return the others, for Spark."""
        self._filters = [one for one in filters if pruning.is_exact(one)]
        return [one for one in filters if not pruning.is_exact(one)]

    def partitions(self) -> Sequence[InputPartition]:
        """Return one portion per few segments, without the segments that the filters rule out."""
        log = open_sealed(self._options.path)
        for slot in log.slots():
            check_lost(self._options, log, slot, 0, log.slots()[slot].next)
        pieces = [Piece(one) for one in log.segments() if pruning.may_hold(self._filters, one)]
        return portions(pieces, os.cpu_count() or 1)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a portion."""
        if isinstance(partition, Portion):  # else Spark's own, which stands for no portion at all
            yield from read_portion(partition, self._schema, self._options, self._filters)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a log. Offsets are {slot: the next offset to read}, slots as text."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._log: Log | None = None
        self._target: offsets.Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the log behind: workers open their own."""
        return {**self.__dict__, "_log": None}

    def initialOffset(self) -> dict[str, int]:
        """Return where a query without a checkpoint begins."""
        return offsets.to_json(offsets.starting(self._options.starting_offsets, self._looked().slots()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what option maxOffsetsPerTrigger says."""
        rows_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what is committed now for the end."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return how far the next micro-batch reads."""
        begin = offsets.from_json(start)
        ends = self._ends()
        if self._target is not None:
            # Slots that have begun since then are for the next run.
            ends = {
                slot: max(min(end, self._target.get(slot, 0)), min(end, begin.get(slot, 0)))
                for slot, end in ends.items()
            }
        if not self._options.fail_on_data_loss:
            # Rows that are gone are passed over here, so that they do not count as waiting.
            there = self._looked().slots()
            begin = {slot: max(begin.get(slot, 0), one.first) for slot, one in there.items()} | {
                slot: offset for slot, offset in begin.items() if slot not in there
            }
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets.to_json(offsets.advance(begin, ends, rows_max))

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the end of the log, for the query's progress."""
        return offsets.to_json(self._ends())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return portions of the rows from `start` up to before `end`."""
        log = self._looked()
        begin = offsets.from_json(start)
        pieces: list[Piece] = []
        for slot, stop in offsets.from_json(end).items():
            first = begin.get(slot, 0)
            if first >= stop:
                continue
            there = log.slots().get(slot)
            if there is None or there.next < stop:
                raise SparkError(
                    f"slot {slot}: the checkpoint names offsets up to {stop}, and the log ends at "
                    f"{0 if there is None else there.next}: this is not the log that it is of"
                )
            if first < there.first:
                gone(self._options, OffsetsGoneError(slot, first, there.first))
            check_lost(self._options, log, slot, first, stop)
            for one in log.segments(slot, first, stop):
                inside = first <= one.first and one.last < stop
                pieces.append(Piece(one) if inside else Piece(one, first, stop))
        return portions(pieces, os.cpu_count() or 1)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a portion."""
        assert isinstance(partition, Portion)
        yield from read_portion(partition, self._schema, self._options)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: retention goes by age and size and waits for no reader."""

    def _ends(self) -> offsets.Offsets:
        return {slot: one.next for slot, one in self._looked().slots().items()}

    def _looked(self) -> Log:
        """Return the log with what is committed now."""
        if self._log is None:
            self._log = open_sealed(self._options.path)
        else:
            self._log.refresh()
        return self._log


def open_sealed(path: str) -> Log:
    """Return the log, with all that a cluster has written that runs no more. Raises OutputError."""
    for slot, reason in seal_ended_at(path).failed.items():
        _log.warning("%s: slot %d: rows that wait to be sealed are not read: %s", path, slot, reason)
    return open_log(path)


def check_lost(options: Options, log: Log, slot: int, first: int, stop: int) -> None:
    """End the query if damage has taken rows of these offsets, unless it is to go on."""
    for one in log.lost(slot):
        if one.first < stop and one.last >= first and options.fail_on_data_loss:
            raise SparkError(
                f"slot {slot}: offsets {one.first} to {one.last} were lost to damage of {one.file}; "
                "option failOnDataLoss=false reads what there is"
            )
