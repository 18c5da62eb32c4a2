"""What waits for one subscriber: its notifications in order, its credit, and what happens when it does not keep up.

A notification is *queued*, then *sent* (written to the socket), then *consumed* (the application took it; the client
reports it). What is sent and not consumed is in flight, bounded by the client's window and by bytes. What does not
fit there waits here. The queue has a limit in notifications and bytes; what comes is taken in one by one, and the
policies of the subscriptions that a notification matches decide about it (`policy.py`):

    block             It is taken in, whatever else; but whoever published is not acknowledged until the queue `admits`
                      what was pushed. So a slow subscriber costs the publishers that it listens to their speed, and
                      nobody else anything: their windows bound what can pile up here.
    drop_oldest       It is taken in; while the queue is over its limit, the oldest that may go are dropped.
    drop_newest       Where it does not fit it is dropped. What has been taken in stays.
    latest_per_key    It is taken in and outdates what waits with the same value of the attribute (`conflation.py`),
                      full or not; where the queue is over its limit all the same, it may go like drop_oldest's.
    disconnect        It is taken in if it fits; if not, even after whatever may go is gone, the client's session ends.

A publication reaches a client once, whatever number of its subscriptions match. Of their policies the strictest
decides: that under which it is kept longest, in the order latest_per_key, drop_oldest, drop_newest, block,
disconnect. So a notification is dropped only if every subscription that it matches allows for loss, outdated only if
it is so for each of them, and it never holds anybody up unless one of them blocks.

Each drop is counted once, with the reason, and once for every subscription that it matches. The reason is what was
done: what a latest_per_key subscription loses to the limit, and not to something newer, counts under drop_oldest.

Policies are applied (`settle`) after what fits in flight has been taken: a client that keeps up never meets them,
however much comes at once. What comes to a full queue of a client without credit meets them as it comes, so that
nobody has to be held up for it in between. A policy that is replaced holds for what comes afterwards. What waits for a
subscription that is closed meanwhile is removed (`keep`), and is not counted as dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NewType

import numpy as np

from cluster import columns
from cluster.chunk import Chunk, joined
from cluster.columns import UINT32, Column
from cluster.conflation import Attributes, Newest
from cluster.policy import BLOCK, DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST_PER_KEY, Policy

__all__ = ["REASONS", "Chunk", "Drops", "Outbox", "Position"]

REASONS = (DROP_OLDEST, DROP_NEWEST, LATEST_PER_KEY)
"""Why something was dropped."""

STRICTNESS = {LATEST_PER_KEY: -3, DROP_OLDEST: -2, DROP_NEWEST: -1, BLOCK: 0, DISCONNECT: 1}
"""The greatest decides; 0 for a number that nobody has told of, so that a mask grows without being filled."""
_LATEST: Final = -3
_OLDEST: Final = -2
_NEWEST: Final = -1
_BLOCK: Final = 0
_DISCONNECT: Final = 1

FEW_BYTES = 400
"""Of numbers that are sooner looked at one by one than by vectors, which take about 20 µs whatever there is."""
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

Position = NewType("Position", int)
"""How often something was pushed: a place in the queue."""


@dataclass(slots=True)
class Drops:
    """Notifications dropped for one reason since the last report, and of which subscriptions (number -> how many)."""

    notifications: int = 0
    counts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Entry:
    """Some neighbours in the queue that have the same strictness; of those with claims, one.

    position: of their push. number: in the order of the queue. beyond: not admitted yet.
    """

    position: Position
    chunk: Chunk
    strictness: int = _BLOCK
    number: int = 0
    beyond: bool = False


class Outbox:
    """The queue of one subscriber.

    queue_messages and queue_bytes bound what waits (but for block, see `admits`);
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
        self._pushed = Position(0)
        self._numbered = 0
        # Settled and waiting, in order, by number; those of them that may be dropped.
        self._queue: OrderedDict[int, _Entry] = OrderedDict()
        self._droppable: OrderedDict[int, _Entry] = OrderedDict()
        self._messages = self._bytes = 0  # notifications and bytes in _queue
        # The end of _queue that is beyond the limit, all of it block; its notifications and bytes.
        self._beyond: deque[_Entry] = deque()
        self._beyond_messages = self._beyond_bytes = 0
        self._fresh: deque[_Entry] = deque()  # pushed, not settled
        self._fresh_messages = self._fresh_bytes = 0
        self.sent = 0
        self.consumed = 0
        self._flight: deque[tuple[int, int]] = deque()  # (sent up to, bytes) per chunk not wholly consumed
        self._flight_bytes = 0
        self._strictness = np.zeros(64, np.int8)  # by subscription number
        self._only_block = True
        self._attributes = Attributes()
        self._newest = Newest()
        self._drops: dict[str, Drops] = {}
        self._dropped: dict[str, int] = {}
        self.overflowed = False
        """Something that matches a subscription with policy disconnect did not fit: the session is to end."""
        self.on_drop: Callable[[str, Chunk], None] | None = None
        """Told of what is dropped, and why."""

    @property
    def queued(self) -> int:
        """Notifications that wait."""
        return self._messages + self._fresh_messages

    @property
    def queued_bytes(self) -> int:
        """Bytes that they cost to keep, as `Chunk.size`."""
        return self._bytes + self._fresh_bytes

    def set_policy(self, number: int, policy: Policy) -> None:
        """Remember the policy of a subscription; it holds for what comes from now on."""
        strictness = STRICTNESS[policy.name]
        self._attributes.set(number, policy.attribute)
        if strictness != _BLOCK:
            self._strictness = columns.mask_with(self._strictness, number)
            self._only_block = False
        if number < len(self._strictness):
            self._strictness[number] = strictness

    # Queue --------------------------------------------------------------------------------------------------------

    def push(self, chunk: Chunk) -> Position:
        """Queue some notifications; ask `admits` about the position returned.

        The policies wait for `settle`, but for a full queue of which nothing may be written.
        """
        self._pushed = Position(self._pushed + 1)
        self._fresh.append(_Entry(self._pushed, chunk))
        self._fresh_messages += len(chunk)
        self._fresh_bytes += chunk.size
        if not self._fits() and self._room() <= 0:
            self._take_in()
        return self._pushed

    def _fits(self) -> bool:
        """Tell whether everything that waits is within the limit, what is not settled included."""
        return (
            self._messages + self._fresh_messages <= self._queue_messages
            and self._bytes + self._fresh_bytes <= self._queue_bytes
        )

    @property
    def end(self) -> Position:
        """The position behind everything that was pushed so far."""
        return self._pushed

    def admits(self, position: Position) -> bool:
        """Tell whether everything pushed up to the position is gone or lies within the queue's limit.

        What is not settled counts in full; once admitted, a position stays so.
        """
        if self._fits():
            return True
        first = self._beyond[0] if self._beyond else self._fresh[0] if self._fresh else None
        return first is None or position < first.position

    def settle(self) -> Mapping[str, int]:
        """Apply the policies to what was pushed; call after `take`. Return `take_counts`."""
        if self._fresh:
            self._take_in()
        elif self._beyond:
            self._advance()
        return self.take_counts()

    def take_counts(self) -> Mapping[str, int]:
        """Return what was dropped by reason since the last call."""
        if not self._dropped:
            return NOTHING
        dropped, self._dropped = self._dropped, {}
        return dropped

    def _take_in(self) -> None:
        """Settle what was pushed."""
        while self._fresh:
            entry = self._fresh.popleft()
            self._fresh_messages -= len(entry.chunk)
            self._fresh_bytes -= entry.chunk.size
            whole = entry.chunk
            for strictness, chunk, conflating in self._alike(whole):
                if chunk is not whole:
                    entry = _Entry(entry.position, chunk)
                entry.strictness = strictness
                self._arrive(entry, conflating)
        if self._beyond:
            self._advance()

    def _over(self) -> bool:
        return self._messages > self._queue_messages or self._bytes > self._queue_bytes

    def _alike(self, chunk: Chunk) -> Iterable[tuple[int, Chunk, bool]]:
        """Cut the chunk where the strictness changes; what goes by an attribute, which the last value says, comes
        one by one."""
        if self._only_block:
            return ((_BLOCK, chunk, False),)
        known, mask = len(self._strictness), self._strictness
        if len(chunk.numbers) == 4:
            number = int.from_bytes(chunk.numbers, "little")
            only = int(mask[number]) if number < known else _BLOCK
            return ((only, chunk, only == _LATEST),)
        if len(chunk) == 1 and len(chunk.numbers) <= FEW_BYTES:
            lone = [int(mask[number]) if number < known else _BLOCK for number in columns.unpack(UINT32, chunk.numbers)]
            return ((max(lone), chunk, min(lone) == _LATEST),)
        return self._cut(chunk)

    def _cut(self, chunk: Chunk) -> Iterator[tuple[int, Chunk, bool]]:
        numbers = columns.u32(chunk.numbers)
        begins = columns.starts(columns.u32(chunk.matches))[:-1]
        told = np.minimum(numbers, len(self._strictness) - 1)
        own = np.where(numbers < len(self._strictness), self._strictness[told], _BLOCK).astype(np.int8)
        strictness = np.maximum.reduceat(own, begins)
        conflating = np.minimum.reduceat(own, begins) == _LATEST
        kinds = strictness.astype(np.int16) * 2 + conflating
        cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(chunk)]
        for first, end in pairwise(cuts):
            part = chunk if end - first == len(chunk) else chunk.select(np.arange(first, end))
            if conflating[first]:
                for row in part.rows():
                    yield int(strictness[first]), row, True
            else:
                yield int(strictness[first]), part, False

    def _arrive(self, entry: _Entry, conflating: bool) -> None:
        """Take in what comes, or not, as its policy says."""
        if entry.strictness == _NEWEST:
            fitting = self._fitting_in(entry.chunk)
            if fitting is None:
                return
            entry.chunk = fitting
        claims = self._attributes.claims(entry.chunk.numbers, entry.chunk.payload) if conflating else []
        for number in self._newest.outdate(claims) if claims else ():
            outdated = self._queue[number]
            self._remove(outdated)
            self._count(outdated.chunk, LATEST_PER_KEY)
        self._append(entry)
        if entry.strictness == _LATEST:
            self._newest.add(entry.number, claims)
        while self._droppable and self._over():
            self._drop_oldest()
        # What is over now is so by what may not be dropped; so it is at the end, unless it is gone itself.
        if self._over() and entry.number in self._queue:
            if entry.strictness == _DISCONNECT:
                self.overflowed = True
            self._set_beyond(entry)

    def _fitting_in(self, chunk: Chunk) -> Chunk | None:
        """Return those that fit into the queue, each after those before it, None if none does; count the others."""
        messages, size = self._queue_messages - self._messages, self._queue_bytes - self._bytes
        if len(chunk) <= messages and chunk.size <= size:
            return chunk
        if len(chunk) == 1:
            self._count(chunk, DROP_NEWEST)
            return None
        fits = np.zeros(len(chunk), np.bool_)
        for place, cost in enumerate(chunk.costs().tolist()):
            if messages > 0 and cost <= size:
                fits[place] = True
                messages -= 1
                size -= cost
        lost = np.flatnonzero(~fits)
        if len(lost):
            self._count(chunk.select(lost), DROP_NEWEST)
        return chunk.select(np.flatnonzero(fits)) if fits.any() else None

    def _drop_oldest(self) -> None:
        """Drop of the oldest entry that may go as many as it takes, or all."""
        entry = next(iter(self._droppable.values()))
        chunk = entry.chunk
        count = len(chunk)
        excess = self._messages - self._queue_messages
        if self._bytes > self._queue_bytes and count > 1:
            gained = np.cumsum(chunk.costs())
            excess = max(excess, int(np.searchsorted(gained, self._bytes - self._queue_bytes)) + 1)
        if excess >= count or count == 1:
            self._remove(entry)
            self._count(chunk, DROP_OLDEST)
        else:
            self._replace(entry, chunk.select(np.arange(excess, len(chunk))))
            self._count(chunk.select(np.arange(excess)), DROP_OLDEST)

    def keep(self, live: Column) -> None:
        """Remove what waits for subscriptions that are not `live` (a mask by number): nobody wants it any more.

        What is left follows the policies that are left, as if it came anew. What was within the limit stays so, as
        there is less before it; what waited beyond it for a subscription with block does so no more without that one.
        """
        self._attributes.keep(lambda number: number < len(live) and bool(live[number]))
        for entry in self._fresh:
            before = entry.chunk
            entry.chunk = before.only(live)
            self._fresh_messages -= len(before) - len(entry.chunk)
            self._fresh_bytes -= before.size - entry.chunk.size
        self._fresh = deque(entry for entry in self._fresh if len(entry.chunk))
        if all(entry.chunk.only(live) is entry.chunk for entry in self._queue.values()):
            return
        waiting, self._queue = list(self._queue.values()), OrderedDict()
        self._droppable.clear()
        self._newest.clear()
        self._beyond.clear()
        self._messages = self._bytes = self._beyond_messages = self._beyond_bytes = 0
        for entry in waiting:
            chunk = entry.chunk.only(live)
            if len(chunk):
                for strictness, part, conflating in self._alike(chunk):
                    self._arrive(_Entry(entry.position, part, strictness), conflating)

    # The queue's books --------------------------------------------------------------------------------------------

    def _append(self, entry: _Entry) -> None:
        self._numbered += 1
        entry.number = self._numbered
        self._queue[entry.number] = entry
        if entry.strictness in (_OLDEST, _LATEST):
            self._droppable[entry.number] = entry
        self._messages += len(entry.chunk)
        self._bytes += entry.chunk.size

    def _remove(self, entry: _Entry) -> None:
        """Take the entry out of the queue."""
        del self._queue[entry.number]
        self._droppable.pop(entry.number, None)
        if entry.strictness == _LATEST:
            self._newest.remove(entry.number)
        self._messages -= len(entry.chunk)
        self._bytes -= entry.chunk.size
        if entry.beyond:
            # Only the first of them: they go in order, and none may be dropped.
            assert self._beyond[0] is entry, "what is beyond the limit leaves in order"
            self._set_admitted()

    def _replace(self, entry: _Entry, rest: Chunk) -> None:
        """Leave only the rest of the entry, which stands at the head of the queue or may be dropped."""
        if entry.beyond:
            self._beyond_messages -= len(entry.chunk) - len(rest)
            self._beyond_bytes -= entry.chunk.size - rest.size
        self._messages -= len(entry.chunk) - len(rest)
        self._bytes -= entry.chunk.size - rest.size
        entry.chunk = rest

    def _set_beyond(self, entry: _Entry) -> None:
        entry.beyond = True
        self._beyond.append(entry)
        self._beyond_messages += len(entry.chunk)
        self._beyond_bytes += entry.chunk.size

    def _set_admitted(self) -> None:
        entry = self._beyond.popleft()
        entry.beyond = False
        self._beyond_messages -= len(entry.chunk)
        self._beyond_bytes -= entry.chunk.size

    def _advance(self) -> None:
        """Admit what has come within the limit."""
        while self._beyond:
            first = self._beyond[0].chunk
            messages = self._messages - self._beyond_messages + len(first)
            size = self._bytes - self._beyond_bytes + first.size
            if messages > self._queue_messages or size > self._queue_bytes:
                return
            self._set_admitted()

    def _count(self, lost: Chunk, reason: str) -> None:
        drops = self._drops.get(reason)
        if drops is None:
            drops = self._drops[reason] = Drops()
        notifications = len(lost)
        if len(lost.numbers) <= FEW_BYTES:
            for number in columns.unpack(UINT32, lost.numbers):
                drops.counts[number] = drops.counts.get(number, 0) + 1
        else:
            numbers, counts = np.unique(columns.u32(lost.numbers), return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                drops.counts[number] = drops.counts.get(number, 0) + count
        drops.notifications += notifications
        self._dropped[reason] = self._dropped.get(reason, 0) + notifications
        if self.on_drop is not None:
            self.on_drop(reason, lost)

    @property
    def has_drops(self) -> bool:
        """Whether something was dropped since the last `take_drops`."""
        return bool(self._drops)

    def take_drops(self) -> dict[str, Drops]:
        """Return what was dropped since the last call, by reason; empty if nothing was."""
        drops, self._drops = self._drops, {}
        return drops

    def waiting(self) -> list[Chunk]:
        """Return what waits, in order."""
        return [entry.chunk for entry in (*self._queue.values(), *self._fresh)]

    # Flight ------------------------------------------------------------------------------------------------------

    def has_credit(self) -> bool:
        """Tell whether anything may be written now."""
        return self._room() > 0

    def _room(self) -> int:
        """Return how many notifications may be written now, as far as that is known beforehand."""
        if self._flight and self._flight_bytes >= self._flight_limit:
            return 0
        return self._window - (self.sent - self.consumed)

    def take(self) -> list[Chunk]:
        """Return what may be written now, as chunks that fit one frame each; they count as sent."""
        if len(self._fresh) == 1 and not self._queue:
            # A client that keeps up: all of it at once, as below.
            chunk = self._fresh[0].chunk
            count, size = len(chunk), chunk.size
            if count <= self._room() and size <= self._frame_bytes:
                self._fresh.clear()
                self._fresh_messages = self._fresh_bytes = 0
                self.send_past(count, size)
                return [chunk]
        groups: list[list[Chunk]] = []
        group_size: int | None = None  # of the last group; None if nothing may join it
        while self._queue or self._fresh:
            room = self._room()
            if room <= 0:
                break
            entry = next(iter(self._queue.values())) if self._queue else self._fresh[0]
            chunk = entry.chunk
            size = chunk.size
            count = min(len(chunk), room)
            if size > self._frame_bytes:
                count = min(count, max(1, self._fitting_frame(chunk)))
            rest = chunk.select(np.arange(count, len(chunk))) if count < len(chunk) else None
            if rest is not None:
                chunk = chunk.select(np.arange(count))
            self._leave(entry, rest)
            self.sent += len(chunk)
            self._flight.append((self.sent, chunk.size))
            self._flight_bytes += chunk.size
            alone = entry.strictness != _LATEST  # those come one by one
            if group_size is not None and not alone and group_size + chunk.size <= self._frame_bytes:
                groups[-1].append(chunk)
                group_size += chunk.size
            else:
                groups.append([chunk])
                group_size = None if alone else chunk.size
        self._advance()
        return [joined(group) for group in groups]

    @property
    def room(self) -> int:
        """How many more may be in flight; 0 while their bytes are at the limit."""
        if self._flight and self._flight_bytes >= self._flight_limit:
            return 0
        return max(self._window - (self.sent - self.consumed), 0)

    def send_past(self, count: int, size: int) -> None:
        """Count notifications as sent that were written without waiting here."""
        self.sent += count
        self._flight.append((self.sent, size))
        self._flight_bytes += size

    def _leave(self, entry: _Entry, rest: Chunk | None) -> None:
        """The first entry is sent, but for the rest."""
        if self._queue:
            if rest is None:
                self._remove(entry)
            else:
                self._replace(entry, rest)
            return
        before = entry.chunk
        self._fresh_messages -= len(before) - (0 if rest is None else len(rest))
        self._fresh_bytes -= before.size - (0 if rest is None else rest.size)
        if rest is None:
            self._fresh.popleft()
        else:
            entry.chunk = rest

    def _fitting_frame(self, chunk: Chunk) -> int:
        return int(np.searchsorted(np.cumsum(chunk.costs()), self._frame_bytes, side="right"))

    def consume(self, count: int) -> bool:
        """The client has taken `count` notifications in all. Returns False if that is impossible."""
        if not self.consumed <= count <= self.sent:
            return False
        self.consumed = count
        while self._flight and self._flight[0][0] <= count:
            self._flight_bytes -= self._flight.popleft()[1]
        return True

    # Tests -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        entries = list(self._queue.values())
        assert [entry.number for entry in entries] == list(self._queue) == sorted(self._queue)
        assert self._messages == sum(len(entry.chunk) for entry in entries)
        assert self._bytes == sum(entry.chunk.size for entry in entries)
        assert self._fresh_messages == sum(len(entry.chunk) for entry in self._fresh)
        assert self._fresh_bytes == sum(entry.chunk.size for entry in self._fresh)
        assert list(self._droppable) == [one.number for one in entries if one.strictness in (_OLDEST, _LATEST)]
        assert all(len(entry.chunk) for entry in [*entries, *self._fresh])
        assert all(len(entry.chunk) == 1 for entry in entries if entry.strictness == _LATEST)
        assert list(self._beyond) == entries[len(entries) - len(self._beyond) :]
        assert [entry for entry in entries if entry.beyond] == list(self._beyond)
        assert self._beyond_messages == sum(len(entry.chunk) for entry in self._beyond)
        assert self._beyond_bytes == sum(entry.chunk.size for entry in self._beyond)
        assert not (self._over() and self._droppable), "over the limit with something that may go"
        self._newest.check()
        assert len(self._newest) == sum(entry.strictness == _LATEST for entry in entries)
