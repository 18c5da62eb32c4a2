"""Rows <-> Arrow tables, exact in both directions.

`RowColumns` takes rows one after the other as plain Python values and becomes one table: about 7 us a row of six
attributes, of which most is telling the attributes apart by type. Columns are made of their bytes: pyarrow's own
conversion takes decimals by way of text, and loads pandas, where there is one, to see whether a list is a series.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cluster.output.schema import INTEGER, SCHEMA

Value = bool | int | float | str | None


class Row(NamedTuple):
    """A publication that was released. Times in microseconds since 1970; attributes as the publisher gave them.

    subscriptions: ascending; an array of int64 ("q") is taken as it is, others number by number.
    """

    offset: int
    epoch: int
    publisher: str
    instance: int
    sequence: int
    time_published_us: int | None
    time_accepted_us: int
    time_released_us: int
    attributes: Mapping[str, Value]
    subscriptions: Sequence[int]
    clients: list[str]


class _Maps:
    """A map or list column in the making: where each row's entries begin, the names or elements, a map's values."""

    __slots__ = ("begins", "names", "values")

    def __init__(self) -> None:
        self.begins = [0]
        self.names: list[Any] = []
        self.values: list[Any] = []


class RowColumns:
    """Rows of one slot, column by column, until they are made a table."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._plain: tuple[list[Any], ...] = tuple([] for _ in range(8))
        self._numbers, self._integers, self._strings, self._flags = _Maps(), _Maps(), _Maps(), _Maps()
        self._nulls, self._clients = _Maps(), _Maps()
        self._subscriptions = array("q")
        self._subscriptions_begin = [0]

    def __len__(self) -> int:
        return len(self._plain[0])

    @property
    def subscriptions(self) -> int:
        """How many subscriptions these rows name in all."""
        return len(self._subscriptions)

    def add(self, row: Row) -> None:
        """Take a row. Offsets must come ascending."""
        offset, epoch, publisher, instance, sequence, published, accepted, released, attributes = row[:9]
        plain = self._plain
        plain[0].append(offset)
        plain[1].append(epoch)
        plain[2].append(publisher)
        plain[3].append(instance)
        plain[4].append(sequence)
        plain[5].append(published)
        plain[6].append(accepted)
        plain[7].append(released)
        numbers, integers, strings, flags, nulls = (
            self._numbers,
            self._integers,
            self._strings,
            self._flags,
            self._nulls,
        )
        for name, value in attributes.items():
            kind = type(value)
            if kind is float:
                into = numbers
            elif kind is int:
                into = integers
            elif kind is str:
                into = strings
            elif kind is bool:
                into = flags
            else:
                nulls.names.append(name)
                continue
            into.names.append(name)
            into.values.append(value)
        for entries in (numbers, integers, strings, flags, nulls):
            entries.begins.append(len(entries.names))
        self._subscriptions.extend(row.subscriptions)
        self._subscriptions_begin.append(len(self._subscriptions))
        self._clients.names += row.clients
        self._clients.begins.append(len(self._clients.names))

    def table(self) -> pa.Table:
        """Return all rows as a table of SCHEMA."""
        offset, epoch, publisher, instance, sequence, published, accepted, released = self._plain
        rows = len(offset)
        arrays = [
            _fixed(offset, np.int64, pa.int64()),
            _fixed(np.full(rows, self._slot, np.int32), np.int32, pa.int32()),
            _fixed(epoch, np.int64, pa.int64()),
            _strings(publisher),
            decimals(instance),
            _fixed(sequence, np.int64, pa.int64()),
            _fixed([time or 0 for time in published], np.int64, _TIME, [time is not None for time in published]),
            _fixed(accepted, np.int64, _TIME),
            _fixed(released, np.int64, _TIME),
            _map_array(self._numbers, _fixed(self._numbers.values, np.float64, pa.float64()), "numbers"),
            _map_array(self._integers, decimals(self._integers.values), "integers"),
            _map_array(self._strings, _strings(self._strings.values), "strings"),
            _map_array(self._flags, flags(self._flags.values), "flags"),
            _list_array(self._nulls.begins, _strings(self._nulls.names), "nulls"),
            _list_array(self._subscriptions_begin, _fixed(self._subscriptions, np.int64, pa.int64()), "subscriptions"),
            _list_array(self._clients.begins, _strings(self._clients.names), "clients"),
        ]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


_TIME = SCHEMA.field("time_accepted").type


def _fixed(values: Any, kind: Any, arrow: pa.DataType, valid: list[bool] | None = None) -> pa.Array:
    """Return numbers as an array; valid: which of them are not null."""
    bits = None if valid is None or all(valid) else pa.py_buffer(_bits(valid))
    return pa.Array.from_buffers(arrow, len(values), [bits, pa.py_buffer(np.asarray(values, kind).tobytes())])


def _bits(values: Any) -> bytes:
    return np.packbits(np.asarray(values, np.bool_), bitorder="little").tobytes()


def flags(values: Any) -> pa.Array:
    """Return truth values as an array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(_bits(values))])


def _strings(values: list[str]) -> pa.Array:
    encoded = [value.encode() for value in values]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(one) for one in encoded], out=ends[1:])
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _map_array(column: _Maps, values: pa.Array, name: str) -> pa.Array:
    kind = SCHEMA.field(name).type
    begins = _fixed(column.begins, np.int32, pa.int32())
    return pa.MapArray.from_arrays(begins, _strings(column.names), values, type=kind)


def _list_array(begins: list[int], values: pa.Array, name: str) -> pa.Array:
    return pa.ListArray.from_arrays(_fixed(begins, np.int32, pa.int32()), values, type=SCHEMA.field(name).type)


def decimals(numbers: list[int]) -> pa.Array:
    """Return the ints, from -2**63 to 2**64 - 1, as an array of INTEGER: 16 bytes each."""
    halves = np.empty((len(numbers), 2), np.uint64)
    halves[:, 0] = [number & 0xFFFFFFFFFFFFFFFF for number in numbers]
    halves[:, 1] = [0xFFFFFFFFFFFFFFFF if number < 0 else 0 for number in numbers]
    return pa.Array.from_buffers(INTEGER, len(numbers), [None, pa.py_buffer(halves.tobytes())])


def int64s(column: pa.ChunkedArray) -> Any:
    """Return a column of int64 or times, without nulls, as a numpy array."""
    parts = [np.frombuffer(one.buffers()[1], np.int64, len(one), 8 * one.offset) for one in column.chunks if len(one)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def table_of(slot: int, rows: Iterable[Row]) -> pa.Table:
    """Return rows of a slot, offsets ascending, as a table of SCHEMA."""
    columns = RowColumns(slot)
    for row in rows:
        columns.add(row)
    return columns.table()


def attributes_of(row: Mapping[str, Any]) -> dict[str, Value]:
    """Return a row's attributes as the publisher gave them; the order of names is not kept.

    Shape:   `row` has the columns numbers, integers, strings, flags and nulls: a dict from Table.to_pylist() (maps are
             lists of pairs) or a pyspark Row's asDict() (maps are dicts). Integers may be Decimals or ints.
    """
    found: dict[str, Value] = {}
    for name in ("numbers", "strings", "flags"):
        found.update(row[name] or ())
    integers = row["integers"] or ()
    for name, value in integers.items() if isinstance(integers, Mapping) else integers:
        found[name] = int(value) if isinstance(value, Decimal) else value
    for name in row["nulls"] or ():
        found[name] = None
    return found
