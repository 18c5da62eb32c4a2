"""The notifications that a durable session is owed, by position, and which positions are settled.

Positions are given in order. Each one up to the last that was given is unsettled, or settled, or free in the place of
a subscription that is given what is valid (`places.py`); those that are settled are known up to the first that is not
by that alone, and beyond it as ranges.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from cluster.config import Durable
from cluster.durable.entries import Entry, OneEntry, Run
from cluster.journal import Append, Discard, Write
from cluster.ranges import Ranges


class Room:
    """Bytes that all durable sessions of a connection point hold."""

    def __init__(self) -> None:
        self.bytes = 0


class Queue:
    """What is owed to one session, `number`.

    entries:   the unsettled ones, by position, ascending.
    bytes:     what these cost to keep.
    next:      the position that is given next. stored: everything up to here is on disk, but for `unstored`, which was
               given as valid.
    settled:   those above the first unsettled one.
    discarded: what is settled up to here the disk need not keep.
    _fresh:    those that were not given to be written yet. _count, _ends: notifications and bytes ever appended, as
               counted since the start.
    """

    def __init__(self, number: int, room: Room, config: Durable) -> None:
        self._number = number
        self._room = room
        self._config = config
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.bytes = 0
        self.next = 1
        self.stored = 0
        self.unstored: set[int] = set()
        self.settled = Ranges()
        self.discarded = 0
        self._fresh: list[Entry] = []
        self._count = self._ends = 0

    def __len__(self) -> int:
        return len(self.entries)

    # Coming and going --------------------------------------------------------------------------------------------

    def push(self, run: Run, sequence: int, numbers: bytes, payload: bytes, *, blocks: bool) -> Entry:
        """Give a notification the next position."""
        entry = Entry(self.next, run, sequence, numbers, payload, blocks)
        self.next += 1
        self.add(entry)
        return entry

    def reserve(self, count: int) -> int:
        """Give so many positions to be filled later; return the first."""
        first = self.next
        self.next += count
        return first

    def add(self, entry: Entry, *, stored: bool = False) -> None:
        """Keep a notification; it is to be written, unless it is `stored`."""
        size = entry.size
        self._append(entry)
        self.bytes += size
        self._room.bytes += size
        if not stored:
            self._fresh.append(entry)

    def _append(self, entry: Entry) -> None:
        self._count += 1
        self._ends += entry.size
        entry.count, entry.end = self._count, self._ends
        self.entries[entry.position] = entry

    def sort(self) -> None:
        """Some were added below others: all are counted anew. A piece in some thousands: a few milliseconds."""
        for position in sorted(self.entries):
            self._append(self.entries.pop(position))

    def remove(self, position: int) -> None:
        """The notification is settled."""
        entry = self.entries.pop(position)
        self.bytes -= entry.size
        self._room.bytes -= entry.size
        self.settled.add(position)

    def narrow(self, entry: Entry, numbers: bytes) -> None:
        """It is for fewer subscriptions."""
        gained = len(entry.numbers) - len(numbers)
        entry.numbers = numbers
        self.bytes -= gained
        self._room.bytes -= gained

    def end(self) -> None:
        """It takes no room any more."""
        self._room.bytes -= self.bytes
        self.bytes = 0
        self.entries.clear()

    # How much there is -------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """More is owed than may be."""
        config = self._config
        return (
            len(self.entries) > config.queue_messages
            or self.bytes > config.queue_bytes
            or self._room.bytes > config.total_bytes
        )

    @property
    def half_empty(self) -> bool:
        """At most the half is owed of what may be."""
        config = self._config
        return (
            2 * len(self.entries) < config.queue_messages
            and 2 * self.bytes < config.queue_bytes
            and self._room.bytes < config.total_bytes
        )

    def extent(self, first: Entry, position: int) -> tuple[int, int]:
        """Return how many notifications, and bytes, there are from the first one to that position, at the least; to
        the end of the queue if there is nothing at that position any more. (0, 0) if it lies before."""
        last = self.entries.get(position)
        if last is None:
            if position < first.position:
                return 0, 0
            last = self.entries[next(reversed(self.entries))]
        return last.count - first.count, last.end - (first.end - first.size)

    # On disk -----------------------------------------------------------------------------------------------------

    def upto(self, free: int | None) -> int:
        """Return up to where every position is settled. free: the first one that is free in a place."""
        upto = next(iter(self.entries)) - 1 if self.entries else self.next - 1
        return upto if free is None else min(upto, free - 1)

    def fresh_below_stored(self) -> list[int]:
        """Return the positions that are about to be written though later ones were before."""
        return [entry.position for entry in self._fresh if entry.position in self.unstored]

    def appends(self) -> list[Write]:
        """Return what writes the fresh ones, a segment for each stretch of positions."""
        writes: list[Write] = []
        fresh, self._fresh = sorted(self._fresh, key=lambda entry: entry.position), []
        begin = 0
        for end in range(1, len(fresh) + 1):
            if end < len(fresh) and fresh[end].position == fresh[end - 1].position + 1:
                continue
            encoded = msgspec.msgpack.encode([entry.to_store() for entry in fresh[begin:end]])
            writes.append(Append(self._number, fresh[begin].position, fresh[end - 1].position, encoded))
            begin = end
        return writes

    def discard(self, upto: int) -> list[Write]:
        """Every position up to this one is settled: return what has the disk forget them, if it has not."""
        self.settled.forget(upto)
        if upto <= self.discarded:
            return []
        self.discarded = upto
        return [Discard(self._number, upto)]

    # Another home ------------------------------------------------------------------------------------------------

    def put_before(
        self, upto: int, following: int, settled: Iterable[tuple[int, int]], entries: Iterable[tuple[int, OneEntry]]
    ) -> list[Entry]:
        """Take what a former home had, before what has come here; return the latter.

        upto, settled: what was settled there; following: the position that it would have given next.
        """
        own = list(self.entries.values())
        first = own[0].position if own else self.next
        begin = min((first, *(one for one, _ in self.settled.pairs())))
        assert following <= begin, "the former home has given positions of this one"
        self.discarded = upto
        self.settled.forget(upto)
        self.entries.clear()
        for position, one in entries:
            self.add(Entry.stored(position, one))
        mine, self.settled = self.settled.pairs(), Ranges()
        for low, high in (*settled, (following, begin - 1), *mine):
            if low <= high and high > upto:
                self.settled.add_all(max(low, upto + 1), high)
        self.unstored.update(entry.position for entry in self._fresh if entry.position < begin)
        for entry in own:
            self._append(entry)
        return own

    def check(self) -> None:
        """Assert what holds of it alone; costly, for tests."""
        assert self.bytes == sum(entry.size for entry in self.entries.values())
        assert list(self.entries) == sorted(self.entries), "positions ascend"
        assert not any(position in self.settled for position in self.entries)
        entries = list(self.entries.values())
        assert [entry.count for entry in entries] == sorted(entry.count for entry in entries)
        self.settled.check()
