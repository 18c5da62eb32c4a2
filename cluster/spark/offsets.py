"""How far a streaming query has read: the next offset of each slot, and what a micro-batch takes.

A slot's offsets are dense from 0, and a slot that is not named has been read up to 0: so a slot that begins while a
query runs (the cluster has grown) is read from its first row, whatever the query began with.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.errors import SparkError
from cluster.output.reader import SlotRange

Offsets = dict[int, int]
"""Slot -> the next offset to read."""


def starting(chosen: str | Offsets, there: Mapping[int, SlotRange]) -> Offsets:
    """Return where a new query begins. A slot that is there and that JSON does not name begins at its earliest."""
    if chosen == "latest":
        return {slot: one.next for slot, one in there.items()}
    begin = {slot: one.first for slot, one in there.items()}
    if not isinstance(chosen, str):
        begin.update(chosen)
    return begin


def advance(start: Offsets, ends: Offsets, rows_max: int | None) -> Offsets:
    """Return how far the next micro-batch reads: at most rows_max rows, shared by what each slot has waiting.

    ends: the offset after the last of each slot that is there.
    Raises: SparkError for a slot whose log ends before what was read of it: it is another log.
    """
    for slot, offset in start.items():
        if offset > ends.get(slot, 0):
            raise SparkError(
                f"slot {slot}: the query has read up to offset {offset}, and the log ends at {ends.get(slot, 0)}: "
                "this is not the log that its checkpoint is of"
            )
    waiting = {slot: end - start.get(slot, 0) for slot, end in sorted(ends.items())}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return dict(ends)
    shares = {slot: rows_max * rows // total for slot, rows in waiting.items()}
    left = rows_max - sum(shares.values())
    for slot, rows in waiting.items():
        more = min(left, rows - shares[slot])
        shares[slot] += more
        left -= more
    return {slot: start.get(slot, 0) + share for slot, share in shares.items()}


def to_json(offsets: Offsets) -> dict[str, int]:
    """Return offsets as Spark keeps them in a checkpoint."""
    return {str(slot): offset for slot, offset in sorted(offsets.items())}


def from_json(offsets: Mapping[str, int]) -> Offsets:
    """Return offsets from a checkpoint."""
    return {int(slot): offset for slot, offset in offsets.items()}
