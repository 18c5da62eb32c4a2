"""A durable session's connection: what goes next, what is underway, and how often each notification has gone.

Notifications go in the order of their positions, what the client has refused before the rest. A place in the window is
free again when the disk has it that what took it is settled, or refused; `Freed` is what waits for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from cluster.config import Durable, Flow
from cluster.durable.entries import Entry, Portion
from cluster.durable.queue import Queue


class Freed(NamedTuple):
    """What follows for a connection once it is on disk: so many places, and bytes, are free.

    refused: positions that may go again; opens: the connection is there.
    """

    connection: int
    places: int
    size: int
    refused: list[int]
    opens: bool


class Sending:
    """Of one session, whose queue this is. frame_bytes: what a Notify frame may take.

    window:        of the present connection, 0 without one.
    is_open:       that it is there is on disk.
    sent:          the highest position ever sent.
    ready:         positions to be sent, in this order; settled ones are passed over.
    flight:        position -> bytes, of what is underway.
    deliveries:    unsettled position -> deliveries on former connections, or refused; `counted` since last asked.
    _connection:   counts them, so that what a former one waited for is passed over.
    _used:         of the window: underway, or settled and that is not on disk; _used_bytes.
    _freed, _freed_bytes, _refused, _opens: what is not given to be written yet; see Freed.
    """

    def __init__(self, queue: Queue, config: Durable, flow: Flow, frame_bytes: int) -> None:
        self._queue = queue
        self._config = config
        self._flow = flow
        # A frame must fit with its runs' names; half the limit leaves room for the worst of them.
        self._frame_bytes = frame_bytes // 2
        self.window = 0
        self.is_open = False
        self.sent = 0
        self.ready: deque[int] = deque()
        self.flight: dict[int, int] = {}
        self.deliveries: dict[int, int] = {}
        self.counted = False
        self._connection = 0
        self._used = self._used_bytes = 0
        self._freed = self._freed_bytes = 0
        self._refused: list[int] = []
        self._opens = False

    def attach(self, window: int) -> None:
        """A client has connected: what is unsettled goes to it."""
        self.window = window
        self._connection += 1
        self.is_open = False
        self._opens = True
        self.ready = deque(self._queue.entries)

    def detach(self) -> list[int]:
        """The connection is gone; return what was underway."""
        self.window = 0
        self._connection += 1
        self.is_open = self._opens = False
        underway = sorted(self.flight)
        self.flight.clear()
        self._refused = []
        self._used = self._used_bytes = self._freed = self._freed_bytes = 0
        self.ready.clear()
        return underway

    # What goes ---------------------------------------------------------------------------------------------------

    @property
    def has_credit(self) -> bool:
        """The client may be sent more."""
        return self._used < self.window and (not self.flight or self._used_bytes < self._flow.flight_bytes)

    def next(self) -> Entry | None:
        """Return the first one that waits to be sent."""
        while self.ready and self.ready[0] not in self._queue.entries:
            self.ready.popleft()
        return self._queue.entries[self.ready[0]] if self.ready else None

    def insert(self, positions: Iterable[int]) -> None:
        """These wait as well, among others that come behind them."""
        self.ready = deque(sorted([*self.ready, *positions]))

    def take(self, end: int) -> list[Portion]:
        """Return what may be sent now, nothing beyond `end`, as portions that fit one frame each; it is underway."""
        out: list[Portion] = []
        entries: list[Entry] = []
        size = 0
        if not self.is_open:
            return out
        queue = self._queue
        gaps = queue.settled.below(self.sent) >= self._config.unsettled_ranges
        while self.ready and self._used < self.window:
            position = self.ready[0]
            entry = queue.entries.get(position)
            if entry is None:
                self.ready.popleft()
                continue
            new = position > self.sent
            if position > min(queue.stored, end) or position in queue.unstored or (new and gaps):
                break
            if self.flight and self._used_bytes >= self._flow.flight_bytes:
                break
            self.ready.popleft()
            cost = entry.size
            self._used += 1
            self._used_bytes += cost
            self.flight[position] = cost
            self.sent = max(self.sent, position)
            if entries and size + cost > self._frame_bytes:
                out.append(self._portion(entries))
                entries, size = [], 0
            entries.append(entry)
            size += cost
        if entries:
            out.append(self._portion(entries))
        return out

    def _portion(self, entries: list[Entry]) -> Portion:
        return Portion(entries, [entry.position in self.deliveries for entry in entries])

    # What comes back ---------------------------------------------------------------------------------------------

    def had(self, position: int) -> bool:
        """The client may have had this notification."""
        return position in self.flight or position in self.deliveries

    def count(self, position: int) -> int:
        """It was delivered, and not acknowledged; return how often by now."""
        self.sent = max(self.sent, position)
        self.deliveries[position] = self.deliveries.get(position, 0) + 1
        self.counted = True
        return self.deliveries[position]

    def refuse(self, position: int) -> None:
        """It comes again."""
        self._free(position)
        self._refused.append(position)

    def settled(self, position: int) -> None:
        """It does not."""
        self.deliveries.pop(position, None)
        if position in self.flight:
            self._free(position)

    def _free(self, position: int) -> None:
        self._freed += 1
        self._freed_bytes += self.flight.pop(position)

    # On disk -----------------------------------------------------------------------------------------------------

    def gather(self) -> Freed:
        """Return what follows when what has happened is on disk."""
        freed = Freed(self._connection, self._freed, self._freed_bytes, self._refused, self._opens)
        self._freed = self._freed_bytes = 0
        self._refused = []
        self._opens = False
        return freed

    def on_disk(self, freed: Freed) -> None:
        """It is."""
        if freed.connection != self._connection:
            return
        self._used -= freed.places
        self._used_bytes -= freed.size
        self.is_open = self.is_open or freed.opens
        self.ready.extendleft(sorted(freed.refused, reverse=True))

    def check(self) -> None:
        """Assert what holds of it and the queue; for tests."""
        queue = self._queue
        assert all(position in queue.entries for position in self.flight)
        assert all(position in queue.entries for position in self.deliveries)
        assert len(self.flight) <= self._used <= self.window or not self.window
        assert all(position <= queue.stored for position in self.flight), "sent and not stored"
        assert not queue.unstored.intersection(self.flight), "sent and not stored"
