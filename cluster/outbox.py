"""What waits for one subscriber: its notifications in order, its credit, and what happens when it does not keep up.

A notification is *queued*, then *sent* (written to the socket), then *consumed* (the application took it; the client
reports it). What is sent and not consumed is in flight, bounded by the client's window and by bytes. What does not
fit there waits here. When that exceeds the queue's limit, the policy of the subscriptions decides:

    drop_oldest   the oldest notifications that only such subscriptions match are removed and counted
    block         nothing is removed; whoever published is not acknowledged until the queue `admits` what was
                  pushed. So a slow subscriber costs the publishers that it listens to their speed, and nobody else
                  anything: their windows bound what can pile up here.

What waits for a subscription that is closed meanwhile is removed (`keep`), and is not counted as dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from cluster import columns
from cluster.columns import U32, Column
from cluster.frames import Notify


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some notifications of one client, in the columns of Notify, ready to be sent as they are.

    It owns its bytes: a slow client keeps no stranger's payload alive.
    """

    runs: list[tuple[str, int, int]]
    run: bytes
    sequence: bytes
    lengths: bytes
    matches: bytes
    numbers: bytes
    payload: bytes
    size: int = field(init=False)
    """Bytes that it costs to keep."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", len(self.payload) + 6 * len(self.run) + len(self.numbers))

    def __len__(self) -> int:
        return len(self.run) >> 2

    def costs(self) -> Column:
        """Return each notification's part of the size."""
        return columns.u32(self.lengths).astype(np.int64) + 24 + 4 * columns.u32(self.matches).astype(np.int64)

    def frame(self) -> Notify:
        """Return it as the client gets it."""
        return Notify(self.runs, self.run, self.sequence, self.lengths, self.matches, self.numbers, self.payload)

    def select(self, chosen: Column) -> Chunk:
        """Return the notifications at these places (ascending)."""
        lengths, matches = columns.u32(self.lengths), columns.u32(self.matches)
        places = columns.starts(matches)
        # Only the runs that are left: a client with a small window would get the names of all with every frame.
        used, run = np.unique(columns.u32(self.run)[chosen], return_inverse=True)
        return Chunk(
            [self.runs[place] for place in used.tolist()],
            run.astype(U32).tobytes(),
            columns.u64(self.sequence)[chosen].tobytes(),
            lengths[chosen].tobytes(),
            matches[chosen].tobytes(),
            columns.u32(self.numbers)[columns.ranges(places[chosen], matches[chosen])].tobytes(),
            columns.gather(self.payload, columns.starts(lengths), chosen),
        )

    def only(self, live: Column) -> Chunk:
        """Return it without the hits of subscriptions that are not `live` (a mask by number), and without
        notifications that lose all their hits by that."""
        numbers = columns.u32(self.numbers)
        kept = live[numbers]
        if kept.all():
            return self
        begins = columns.starts(columns.u32(self.matches))[:-1]
        matches = np.add.reduceat(kept.astype(U32), begins, dtype=U32)
        left = replace(self, matches=matches.tobytes(), numbers=numbers[kept].tobytes())
        return left.select(np.flatnonzero(matches))


class Drops(NamedTuple):
    """Notifications removed since the last report, and of which subscriptions (number -> how many)."""

    notifications: int
    counts: dict[int, int]


class Position(NamedTuple):
    """How much was ever pushed: a place in the queue."""

    messages: int
    bytes: int


class Outbox:
    """The queue of one subscriber.

    queue_messages and queue_bytes bound what is dropped from;
    window and flight_bytes what is in flight; frame_bytes a Notify frame's columns and payload.
    """

    def __init__(
        self, *, window: int, flight_bytes: int, queue_messages: int, queue_bytes: int, frame_bytes: int
    ) -> None:
        self._window = window
        self._flight_limit = flight_bytes
        self._queue_messages = queue_messages
        self._queue_bytes = queue_bytes
        # A frame must fit with its runs' names; half the limit leaves room for the worst of them.
        self._frame_bytes = frame_bytes // 2
        self._queue: deque[tuple[Position, Chunk]] = deque()  # with the position of its end
        self._bytes = 0
        self.queued = 0  # notifications in _queue
        self._pushed = 0  # ever pushed, dropped ones included
        self._pushed_bytes = 0
        self.sent = 0
        self.consumed = 0
        self.dropped = 0
        self._flight: deque[tuple[int, int]] = deque()  # (sent up to, bytes) per frame not wholly consumed
        self._flight_bytes = 0
        self._droppable = np.zeros(64, np.bool_)  # by subscription number: policy drop_oldest
        self._any_droppable = False
        self._drops: dict[int, int] = {}
        self._dropped_untold = 0
        self.on_drop: Callable[[str, Chunk], None] | None = None
        """Told of what is dropped, and why."""

    def set_policy(self, number: int, *, droppable: bool) -> None:
        """Remember the policy of a subscription."""
        if droppable:
            self._droppable = columns.mask_with(self._droppable, number)
            self._any_droppable = True
        if number < len(self._droppable):
            self._droppable[number] = droppable

    # Queue --------------------------------------------------------------------------------------------------------

    def push(self, chunk: Chunk) -> Position:
        """Queue some notifications and drop what the policies allow; ask `admits` about the position returned."""
        self._pushed += len(chunk)
        self._pushed_bytes += chunk.size
        self.queued += len(chunk)
        self._bytes += chunk.size
        position = self.end
        self._queue.append((position, chunk))
        if self._any_droppable and self._over():
            self._trim()
        return position

    @property
    def end(self) -> Position:
        """The position behind everything that was pushed so far."""
        return Position(self._pushed, self._pushed_bytes)

    def _over(self) -> bool:
        return self.queued > self._queue_messages or self._bytes > self._queue_bytes

    def admits(self, position: Position) -> bool:
        """Tell whether everything pushed up to the position is gone or lies within the queue's limit.

        Counted from the head of the queue, removed ones in between included: at worst it says no for longer.
        """
        if not self._queue:
            return True
        end, head = self._queue[0]
        return (
            position.messages - (end.messages - len(head)) <= self._queue_messages
            and position.bytes - (end.bytes - head.size) <= self._queue_bytes
        )

    def _trim(self) -> None:
        """Drop the oldest droppable notifications until the queue is within its limit or none is left to drop."""
        kept: list[tuple[Position, Chunk]] = []
        while self._queue and self._over():
            position, chunk = self._queue.popleft()
            places = np.flatnonzero(self._droppable_in(chunk))
            excess = max(self.queued - self._queue_messages, 0)
            if self._bytes > self._queue_bytes:
                gained = np.cumsum(chunk.costs()[places])
                excess = max(excess, int(np.searchsorted(gained, self._bytes - self._queue_bytes)) + 1)
            places = places[:excess]
            if len(places):
                lost = chunk.select(places)
                self._count(lost)
                keep = np.ones(len(chunk), np.bool_)
                keep[places] = False
                rest = chunk.select(np.flatnonzero(keep))
                self.queued -= len(lost)
                self._bytes -= chunk.size - rest.size
                chunk = rest
            if len(chunk):
                kept.append((position, chunk))
        self._queue.extendleft(reversed(kept))

    def keep(self, live: Column) -> None:
        """Remove what waits for subscriptions that are not `live` (a mask by number): nobody wants it any more."""
        waiting, self._queue = self._queue, deque()
        for position, chunk in waiting:
            rest = chunk.only(live)
            self.queued -= len(chunk) - len(rest)
            self._bytes -= chunk.size - rest.size
            if len(rest):
                self._queue.append((position, rest))

    def _droppable_in(self, chunk: Chunk) -> Column:
        numbers = columns.u32(chunk.numbers)
        known = np.minimum(numbers, len(self._droppable) - 1)
        droppable = self._droppable[known] & (numbers < len(self._droppable))
        result: Column = np.logical_and.reduceat(droppable, columns.starts(columns.u32(chunk.matches))[:-1])
        return result

    def _count(self, lost: Chunk) -> None:
        numbers, counts = np.unique(columns.u32(lost.numbers), return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._drops[number] = self._drops.get(number, 0) + count
        self._dropped_untold += len(lost)
        self.dropped += len(lost)
        if self.on_drop is not None:
            self.on_drop("drop_oldest", lost)

    def take_drops(self) -> Drops | None:
        """Return what was dropped since the last call, None if nothing was."""
        if not self._dropped_untold:
            return None
        drops = Drops(self._dropped_untold, self._drops)
        self._dropped_untold, self._drops = 0, {}
        return drops

    def waiting(self) -> list[Chunk]:
        """Return what waits, in order."""
        return [chunk for _, chunk in self._queue]

    # Flight ------------------------------------------------------------------------------------------------------

    def has_credit(self) -> bool:
        """Tell whether anything may be written now."""
        room = self._window - (self.sent - self.consumed)
        return room > 0 and not (self._flight and self._flight_bytes >= self._flight_limit)

    def take(self) -> list[Chunk]:
        """Return what may be written now, as chunks that fit one frame each; they count as sent."""
        out: list[Chunk] = []
        while self._queue:
            room = self._window - (self.sent - self.consumed)
            if room <= 0 or (self._flight and self._flight_bytes >= self._flight_limit):
                break
            position, chunk = self._queue.popleft()
            size = chunk.size
            count = min(len(chunk), room)
            if size > self._frame_bytes:
                count = min(count, max(1, self._fitting(chunk)))
            if count < len(chunk):
                rest = chunk.select(np.arange(count, len(chunk)))
                chunk = chunk.select(np.arange(count))
                self._queue.appendleft((position, rest))
            self.queued -= len(chunk)
            self.sent += len(chunk)
            self._bytes -= chunk.size
            self._flight.append((self.sent, chunk.size))
            self._flight_bytes += chunk.size
            out.append(chunk)
        return out

    def _fitting(self, chunk: Chunk) -> int:
        return int(np.searchsorted(np.cumsum(chunk.costs()), self._frame_bytes, side="right"))

    def consume(self, count: int) -> bool:
        """The client has taken `count` notifications in all. Returns False if that is impossible."""
        if not self.consumed <= count <= self.sent:
            return False
        self.consumed = count
        while self._flight and self._flight[0][0] <= count:
            self._flight_bytes -= self._flight.popleft()[1]
        return True
