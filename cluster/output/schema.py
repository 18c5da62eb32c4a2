"""The columns of matched output: what Spark, the analytics and everyone else may rely on.

One row is one publication that the cluster has matched (or any it has released, by `output.all`), once.

    offset         place in the slot's log: dense from 0, never used twice
    slot           of the exit point that wrote it; (slot, offset) names the row
    epoch          of the view in which it was released
    publisher, instance, sequence
                   the publisher's name, its life (a uint64, so a decimal), its number of the publication; the three
                   together name the publication for good
    time_published by the publisher's clock; null if it did not say
    time_accepted  by the clock of the connection point that took it in
    time_released  by the clock of the exit point; the three in microseconds, UTC
    numbers, integers, strings, flags
                   the attributes by type: floats, ints (from -2**63 to 2**64 - 1, hence decimals), texts, booleans
    nulls          names of the attributes that are null: `exists` holds for them
    subscriptions  the cluster's numbers of those that matched, ascending (client << 20 | the client's own number)
    clients        the ids of the clients that hold them, ascending, each once

No attribute is in two of the four maps, nor in one of them and in `nulls`. The partition column `date` is not in the
file: it is the UTC day of time_accepted, and the name of the folder that the file is in.
"""

from __future__ import annotations

from datetime import date, timedelta

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")
INTEGER = pa.decimal128(20, 0)


def _map(value: pa.DataType) -> pa.DataType:
    return pa.map_(pa.string(), pa.field("value", value, nullable=False))


def _list(value: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", value, nullable=False))


SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("instance", INTEGER, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("time_published", _TIME, nullable=True),
        pa.field("time_accepted", _TIME, nullable=False),
        pa.field("time_released", _TIME, nullable=False),
        pa.field("numbers", _map(pa.float64()), nullable=False),
        pa.field("integers", _map(INTEGER), nullable=False),
        pa.field("strings", _map(pa.string()), nullable=False),
        pa.field("flags", _map(pa.bool_()), nullable=False),
        pa.field("nulls", _list(pa.string()), nullable=False),
        pa.field("subscriptions", _list(pa.int64()), nullable=False),
        pa.field("clients", _list(pa.string()), nullable=False),
    ]
)

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)


def date_of(time_us: int) -> str:
    """Return the UTC day of a time in microseconds since 1970, as YYYY-MM-DD."""
    return (_EPOCH + timedelta(days=time_us // DAY_US)).isoformat()


def folder_of(day: str) -> str:
    """Return the folder, below the output's own, that holds the segments of a day."""
    return f"date={day}"
