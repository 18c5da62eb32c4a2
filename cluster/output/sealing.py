"""Write-ahead rows -> Arrow tables.

The only place in which an exit point's process looks into attributes, in a thread that shares the interpreter with the
machine: so it stops to breathe every few milliseconds, and does as little as possible for each row in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
import pyarrow as pa

from cluster.matched import rows_of
from cluster.messages import SESSION_BITS
from cluster.output.rows import Row, RowColumns
from cluster.output.write_ahead import Rows

BREATH_US = 1000
ROW_US = 10
SUBSCRIPTIONS_PER_US = 20
"""Time between two breaths, and about how much of it a row of six attributes takes, and whom it was matched by."""
PIECE_ROWS = 500
PIECE_SUBSCRIPTIONS = 1 << 17
"""Of so many rows, or of those that name so many, a table is made at once: one or two milliseconds without a breath."""

_decode = msgspec.msgpack.Decoder(dict[str, bool | int | float | str | None]).decode


def client_name(client: int, names: Mapping[int, str]) -> str:
    """Return a client's id; `?SLOT.SESSION` for one that nobody knows any more (it may then be no other's: ids that
    begin with `?` are not told apart from it)."""
    name = names.get(client)
    return f"?{client >> SESSION_BITS}.{client & ((1 << SESSION_BITS) - 1)}" if name is None else name


def table_of_rows(
    slot: int, records: Iterable[Rows], names: Mapping[int, str], breathe: Callable[[], None] = lambda: None
) -> pa.Table:
    """Return the rows of a slot's records, in order, as a table of SCHEMA."""
    pieces: list[pa.Table] = []
    columns = RowColumns(slot)
    left_us = BREATH_US
    for record in records:
        offset, released_us, matched = record.offset, record.released_us, record.matched
        epoch = matched.epoch
        for place, row in enumerate(rows_of(matched)):
            run = row.run
            clients = row.clients
            subscriptions = row.subscriptions()
            columns.add(
                Row(
                    offset + place,
                    epoch,
                    run.publisher,
                    run.instance,
                    row.sequence,
                    run.published_us or None,
                    run.time_us,
                    released_us,
                    _decode(row.payload),
                    subscriptions,
                    sorted({client_name(client, names) for client in clients})
                    if len(clients) != 1
                    else [client_name(next(iter(clients)), names)],
                )
            )
            left_us -= ROW_US + len(subscriptions) // SUBSCRIPTIONS_PER_US
            if len(columns) == PIECE_ROWS or columns.subscriptions >= PIECE_SUBSCRIPTIONS:
                breathe()
                pieces.append(columns.table())
                columns = RowColumns(slot)
                left_us = 0
            if left_us <= 0:
                left_us = BREATH_US
                breathe()
    pieces.append(columns.table())
    # In one chunk, as all that reads it expects; pyarrow lets go of the interpreter for that.
    return pa.concat_tables(pieces).combine_chunks()
