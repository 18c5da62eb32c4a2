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

BREATH_ROWS = 100
"""Rows between two breaths: about a millisecond."""

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
    columns = RowColumns(slot)
    add = columns.add
    breath = BREATH_ROWS
    for record in records:
        offset, released_us, matched = record.offset, record.released_us, record.matched
        epoch = matched.epoch
        for place, row in enumerate(rows_of(matched)):
            run = row.run
            clients = row.clients
            add(
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
                    row.subscriptions(),
                    sorted({client_name(client, names) for client in clients})
                    if len(clients) != 1
                    else [client_name(next(iter(clients)), names)],
                )
            )
            breath -= 1
            if not breath:
                breath = BREATH_ROWS
                breathe()
    return columns.table()
