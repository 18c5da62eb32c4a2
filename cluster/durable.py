"""A durable session: what it holds and is owed outlives its connections, and any one crash.

It lives at one connection point, its home, and in the file of that slot, so that a later incarnation goes on with it.

    position   each notification has one, dense from 1 on, given once and for good
    unsettled  the client has not acknowledged it: it is kept, on disk and here, and delivered again on the next
               connection; the other ones are settled, whatever the reason
    underway   sent on the present connection and unsettled; bounded by the client's window, and in bytes

The order of things, from which the promises follow:

    a notification is on disk       before its run is Delivered, and before it is sent
    that the client is connected    is on disk, with its window, before anything is sent to it
    that a position is settled      is on disk before another notification takes its place in the window

So after a crash of the connection point everything is there that was Delivered, and at most a window of it may have
been sent without our knowing: these are the first unsettled ones, as they are sent in order and refused ones go first.
They count as delivered once more and are flagged when they come again: nothing comes twice without the flag, and no
more than a window of it.

Acknowledgements are by position, single ones or all up to one. What a client refuses, or has had `max_deliver` times
and never acknowledged, goes to the dead letters in the end.

When the client does not keep up: while it is connected, what a subscription with policy `block` matches is not removed
and whoever published waits, as in any session (`outbox.py`). What only `drop_oldest` ones match, and everything while
there is no connection, is bounded by the session's quota: the oldest that is not underway is removed, counted, told.

A subscription that is opened with what is valid is *served*: what `initial.py` gives is owed like the rest, and comes
before what matches live after it was opened. That may have come already; so when it is opened it gets a *place*,
RESERVED positions that follow the last one given, and nothing beyond the place is sent before all is given and that is
on disk. What is left of the place then counts as settled. Places, and how far each was given, are on disk with what was
given; what has come live meanwhile is known from the queue, as none of it can have been sent.

It may change its home (`serving/handing.py`). Before, the one to come collects what the subscriptions match there too,
at positions far behind (`arriving`); in the end the present one takes nothing any more (`frozen_to`), and everything it
has is taken over. What both have taken is known by how far the former one got of each publisher. From then on the
session keeps for itself how far it has been offered what each publisher sent (`marks`): the connection point, where
others may have got more or less of it, cannot know.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from cluster import columns
from cluster.columns import Column
from cluster.config import Durable, Flow
from cluster.frames import GIVEN, REDELIVERED, Dropped, Notify
from cluster.initial import Initial
from cluster.journal import (
    Append,
    DeadLetter,
    Discard,
    Journal,
    RemoveSubscription,
    SaveDeliveries,
    SavedSession,
    SaveMark,
    SaveSession,
    SaveSubscription,
    Write,
)
from cluster.messages import ValidPublication
from cluster.outbox import Chunk, Position
from cluster.ranges import Ranges
from cluster.valid import Key
from cluster.watermarks import Watermarks

ENTRY_BYTES = 64
"""What a notification costs beyond its payload and its numbers, about, in memory and on disk."""

RESERVED = 1 << 32
"""Positions for what is valid, of one subscription; more than there are valid publications anywhere."""
MARKS_KEPT = 200_000
"""Publishers whose last sequence a session that has moved remembers."""
AHEAD = 512
"""What is valid is given to a client that is connected as long as fewer than so many wait to be sent before it."""

QUOTA, MAX_DELIVER, CLOSED = "quota", "max_deliver", "closed"
"""Why a notification is removed; the last is no loss, and tells the client that a position does not come again."""

Run = tuple[str, int, int]
"""(publisher, instance, microseconds since 1970)."""


class OneEntry(msgspec.Struct, frozen=True, array_like=True):
    """A notification on disk. given: as valid."""

    run: Run
    sequence: int
    numbers: bytes
    payload: bytes
    given: bool = False


_entries_decoder = msgspec.msgpack.Decoder(list[OneEntry])


class _State(msgspec.Struct, array_like=True):
    """What SaveSession holds. window: of the connection, 0 without one; settled: ranges above `upto`.

    untold: reason -> (notifications, number -> how many), what was dropped and the client was not told.
    places: (number, next, last, everything given up to there) of each subscription that is being served, in order.
    given:  (number, publisher, instance, sequences) of what was given as valid and may still come live.
    name:   what its client knows it by. arriving, frozen_to: see DurableSession. moved: it has marks.
    """

    client_id: str
    instance: int
    expires_s: int
    max_deliver: int
    next_position: int
    upto: int
    settled: list[tuple[int, int]]
    window: int
    untold: dict[str, tuple[int, dict[int, int]]]
    places: list[tuple[int, int, int, Key | None]] = []
    given: list[tuple[int, str, int, list[int]]] = []
    name: int = 0
    arriving: tuple[int, int] | None = None
    frozen_to: int | None = None
    moved: bool = False


_state_decoder = msgspec.msgpack.Decoder(_State)
_deliveries_decoder = msgspec.msgpack.Decoder(dict[int, int])


class Held(NamedTuple):
    """A subscription. filter: as it was asked for."""

    filter: str
    policy: str
    normal_form: bytes


@dataclass(slots=True)
class Entry:
    """A notification that is not settled.

    count, end: notifications and bytes of the queue up to it, from some start on. blocks: its publisher waits for room.
    given: as valid.
    """

    position: int
    run: Run
    sequence: int
    numbers: bytes
    payload: bytes
    blocks: bool
    given: bool = False
    count: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        """What it costs to keep."""
        return len(self.payload) + len(self.numbers) + ENTRY_BYTES


@dataclass(slots=True)
class Place:
    """Positions for what a subscription is given as valid: from `next` to `last` they are free."""

    initial: Initial
    next: int
    last: int


class Room:
    """Bytes that all durable sessions of a connection point hold."""

    def __init__(self) -> None:
        self.bytes = 0


@dataclass(frozen=True, slots=True)
class Portion:
    """Some notifications, for one frame. again: which of them are flagged as delivered before."""

    entries: list[Entry]
    again: list[bool]

    def __len__(self) -> int:
        return len(self.entries)

    def frame(self) -> Notify:
        """Return it as the client gets it."""
        runs: dict[Run, int] = {}
        run = [runs.setdefault(entry.run, len(runs)) for entry in self.entries]
        return Notify(
            list(runs),
            columns.pack(columns.UINT32, run),
            columns.pack(columns.UINT64, [entry.sequence for entry in self.entries]),
            columns.pack(columns.UINT32, [len(entry.payload) for entry in self.entries]),
            columns.pack(columns.UINT32, [len(entry.numbers) // 4 for entry in self.entries]),
            b"".join([entry.numbers for entry in self.entries]),
            b"".join([entry.payload for entry in self.entries]),
            columns.pack(columns.UINT64, [entry.position for entry in self.entries]),
            bytes(
                [
                    REDELIVERED * again | GIVEN * entry.given
                    for again, entry in zip(self.again, self.entries, strict=True)
                ]
            ),
        )


class _Receipt(NamedTuple):
    """What `gather` has given to be written, and what follows from it once it is."""

    connection: int
    last: int
    freed: int
    freed_bytes: int
    refused: list[int]
    opens: bool
    given: list[int]
    closed: list[int]


class DurableSession:
    """The session's durable half. number: it names the session for good.

    `journal` is told what has changed; `room` is shared by all sessions of the connection point.
    frame_bytes: what a Notify frame may take.
    """

    def __init__(
        self, number: int, client_id: str, journal: Journal, room: Room, config: Durable, flow: Flow, frame_bytes: int
    ) -> None:
        self.number = number
        self.name = number
        """What the client knows it by: its number at its first home."""
        self.client_id = client_id
        self.arriving: tuple[int, int] | None = None
        """It lives elsewhere and is about to move here: the connection point that it comes from, and its attempt."""
        self.frozen_to: int | None = None
        """It is about to move to this connection point, and takes nothing more once that is on disk."""
        self.frozen = False
        """That is on disk."""
        self.marks: Watermarks | None = None
        """Of a session that has moved, or arrives: what it has been offered last of each publisher."""
        self.instance = 0
        self.expires_s = config.expires_s
        self.max_deliver = config.max_deliver
        self.subscriptions: dict[int, Held] = {}
        self.serving: dict[int, Initial] = {}
        """By number, the subscriptions that are being given what is valid."""
        self.initials: dict[int, Initial] = {}
        """These, and those that may still get live what they were given; the connection point takes them out."""
        self.detached_ms: int | None = None
        """Since when there is no connection; None while there is one, or until the first Tick after a restart."""
        self._journal = journal
        self._room = room
        self._config = config
        self._flow = flow
        # A frame must fit with its runs' names; half the limit leaves room for the worst of them.
        self._frame_bytes = frame_bytes // 2
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # unsettled, by position
        self._bytes = 0
        self._count = self._ends = 0  # notifications and bytes ever appended, as counted since the start
        self._places: dict[int, Place] = {}  # by number, of those that are served; in the order of their positions
        self._closed: list[int] = []  # where places end that are closed, which is not on disk
        self._unstored: set[int] = set()  # positions below `_stored` that are not on disk: given as valid
        self._fresh: list[Entry] = []  # not given to be written yet
        self._next = 1
        self._stored = 0  # everything up to here is on disk
        self._settled = Ranges()  # above the first unsettled position
        self._discarded = 0
        self._deliveries: dict[int, int] = {}  # unsettled position -> deliveries on former connections, or refused
        self._deliveries_changed = False
        self._untold: dict[str, tuple[int, dict[int, int]]] = {}
        self._untold_positions: dict[str, list[int]] = {}
        # The present connection:
        self.window = 0
        self._connection = 0  # counts them, so that what a former one waited for is passed over
        self._open = False  # that it is there is on disk
        self._opens = False
        self._ready: deque[int] = deque()  # positions to be sent, in this order; settled ones are passed over
        self._sent = 0  # the highest position ever sent
        self._flight: dict[int, int] = {}  # position -> bytes
        self._used = 0  # of the window: underway, or settled and that is not on disk
        self._used_bytes = 0
        self._freed = 0
        self._freed_bytes = 0
        self._refused: list[int] = []
        self.dropped = 0
        """Notifications removed for want of room."""
        self.dead = 0
        """Notifications that went to the dead letters."""

    @classmethod
    def restored(
        cls, saved: SavedSession, journal: Journal, room: Room, config: Durable, flow: Flow, frame_bytes: int
    ) -> DurableSession:
        """Return the session as a former incarnation has left it; what may have been underway counts as delivered."""
        state = _state_decoder.decode(saved.state)
        session = cls(saved.session, state.client_id, journal, room, config, flow, frame_bytes)
        session.instance = state.instance
        session.expires_s = state.expires_s
        session.max_deliver = state.max_deliver
        session.name = state.name or saved.session
        session.arriving, session.frozen_to = state.arriving, state.frozen_to
        session.frozen = state.frozen_to is not None
        if state.moved:
            session.marks = Watermarks(MARKS_KEPT)
            for publisher, instance, sequence in saved.marks:
                session.marks.raise_to((publisher, instance), sequence)
        session._next = state.next_position
        session._stored = state.next_position - 1
        session._settled = Ranges(state.settled)
        session._discarded = state.upto
        session._untold = dict(state.untold)
        for held in saved.subscriptions:
            session.subscriptions[held.number] = Held(held.filter, held.policy, held.normal_form)
        for first, _, encoded in saved.segments:
            for position, one in enumerate(_entries_decoder.decode(encoded), first):
                if position > state.upto and position not in session._settled:
                    session._add(Entry(position, one.run, one.sequence, one.numbers, one.payload, False, one.given))
        session._resume_serving(state)
        if saved.deliveries:
            known = _deliveries_decoder.decode(saved.deliveries)
            session._deliveries = {one: count for one, count in known.items() if one in session._entries}
        settled = (last for _, last in state.settled)
        session._sent = max((state.upto, *settled, *session._deliveries))
        session._only_held()
        if state.window:
            place = next(iter(session._places.values()), None)
            may_go = [position for position in session._entries if place is None or position <= place.last]
            session._count_deliveries(may_go[: state.window])
            journal.changed(session)
        return session

    # What it is owed ---------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Notifications that are not settled and not underway."""
        return len(self._entries) - len(self._flight)

    @property
    def unsettled(self) -> int:
        """Notifications that are not settled."""
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """What these cost to keep."""
        return self._bytes

    def has_credit(self) -> bool:
        """Tell whether the client may be sent more."""
        return self._used < self.window and (not self._flight or self._used_bytes < self._flow.flight_bytes)

    def find(self, publisher: str, sequence: int) -> dict[str, Any] | None:
        """Return where the notification of a publication is, for `why.py`; None if none is unsettled."""
        for entry in reversed(self._entries.values()):
            if entry.sequence == sequence and entry.run[0] == publisher:
                state = "sent" if entry.position in self._flight else "waiting"
                numbers = columns.unpack(columns.UINT32, entry.numbers)
                return {"state": state, "taken_us": entry.run[2], "numbers": numbers, "position": entry.position}
        return None

    def push(self, chunk: Chunk) -> Position:
        """Take notifications; they are on disk with the journal's present portion. Ask `admits` about the position."""
        lengths = columns.unpack(columns.UINT32, chunk.lengths)
        matches = columns.unpack(columns.UINT32, chunk.matches)
        numbers = columns.cut(chunk.numbers, [4 * count for count in matches])
        payloads = columns.cut(chunk.payload, lengths)
        blocked = Position(0)
        for run, sequence, own, payload in zip(
            columns.unpack(columns.UINT32, chunk.run),
            columns.unpack(columns.UINT64, chunk.sequence),
            numbers,
            payloads,
            strict=True,
        ):
            entry = Entry(self._next, chunk.runs[run], sequence, own, payload, self.window > 0 and self._blocks(own))
            self._next += 1
            self._add(entry)
            self._fresh.append(entry)
            self._ready.append(entry.position)
            if entry.blocks:
                blocked = Position(entry.position)
        self._journal.changed(self)
        self._trim()
        return blocked

    @property
    def last(self) -> Position:
        """The position of the last one that a publisher may wait for, for `admits`."""
        return Position(self._next - 1 if self.window else 0)

    @property
    def is_open(self) -> bool:
        """That the client is connected is on disk."""
        return self._open

    def _add(self, entry: Entry) -> None:
        size = entry.size
        self._append(entry)
        self._bytes += size
        self._room.bytes += size

    def _append(self, entry: Entry) -> None:
        self._count += 1
        self._ends += entry.size
        entry.count, entry.end = self._count, self._ends
        self._entries[entry.position] = entry

    def _blocks(self, numbers: bytes) -> bool:
        held = self.subscriptions
        for number in columns.unpack(columns.UINT32, numbers):
            subscription = held.get(number)
            if subscription is not None and subscription.policy == "block":
                return True
        return False

    def admits(self, position: Position) -> bool:
        """Tell whether everything up to the position is gone or lies within the queue's limit; at worst it says no for
        longer. Without a connection it always does: then the quota bounds the queue."""
        if not self.window:
            return True
        while self._ready and self._ready[0] not in self._entries:
            self._ready.popleft()
        if not self._ready:
            return True
        head = self._entries[self._ready[0]]
        last = self._entries.get(position)
        if last is None:
            if position < head.position:
                return True
            last = self._entries[next(reversed(self._entries))]
        messages, size = last.count - head.count, last.end - (head.end - head.size)
        return messages < self._flow.queue_messages and size <= self._flow.queue_bytes

    def _over(self) -> bool:
        config = self._config
        return (
            len(self._entries) > config.queue_messages
            or self._bytes > config.queue_bytes
            or self._room.bytes > config.total_bytes
        )

    def _trim(self) -> None:
        """Remove the oldest that may be removed until the session is within its quota."""
        if not self._over():
            return
        if not self.window:
            while self._entries and self._over():
                self._drop(next(iter(self._entries.values())), QUOTA)
            return
        while self._ready and self._over():
            entry = self._entries.get(self._ready[0])
            if entry is not None:
                if entry.blocks:
                    return
                self._drop(entry, QUOTA)
            self._ready.popleft()

    def _drop(self, entry: Entry, reason: str) -> None:
        told = entry.position in self._flight or entry.position in self._deliveries
        if reason == MAX_DELIVER:
            self.dead += 1
            self._journal.write(DeadLetter(self._letter(entry)))
        else:
            self.dropped += 1
        notifications, counts = self._untold.get(reason, (0, {}))
        for number in columns.unpack(columns.UINT32, entry.numbers):
            counts[number] = counts.get(number, 0) + 1
        self._untold[reason] = notifications + 1, counts
        if told:
            self._untold_positions.setdefault(reason, []).append(entry.position)
        self._settle(entry.position)

    def _letter(self, entry: Entry) -> bytes:
        return msgspec.json.encode(
            {
                "client_id": self.client_id,
                "position": entry.position,
                "reason": MAX_DELIVER,
                "deliveries": self._deliveries.get(entry.position, 0),
                "publisher": entry.run[0],
                "sequence": entry.sequence,
                "instance": entry.run[1],
                "time_us": entry.run[2],
                "subscriptions": columns.unpack(columns.UINT32, entry.numbers),
                "attributes": msgspec.msgpack.decode(entry.payload),
            }
        )

    def take_drops(self) -> list[Dropped]:
        """Return what the client is to be told of what was removed since the last call."""
        if not self._untold:
            return []
        frames = [
            Dropped(
                reason,
                notifications,
                sorted(counts.items()),
                columns.pack(columns.UINT64, self._untold_positions.get(reason, ())),
            )
            for reason, (notifications, counts) in self._untold.items()
        ]
        self._untold = {}
        self._untold_positions = {}
        self._journal.changed(self)
        return frames

    # Subscriptions -----------------------------------------------------------------------------------------------

    def hold(self, number: int, held: Held) -> None:
        """Have the subscription on disk with the journal's present portion."""
        self.subscriptions[number] = held
        self._journal.write(SaveSubscription(self.number, number, *held))

    def close(self, number: int) -> None:
        """Have it removed there."""
        if self.subscriptions.pop(number, None) is not None:
            self._journal.write(RemoveSubscription(self.number, number))
        if number in self._places:
            self.served(number)

    def keep(self, live: Column) -> None:
        """Settle what waits for subscriptions that are not `live` (a mask by number): nobody wants it any more."""
        for entry in list(self._entries.values()):
            if entry.position in self._flight:
                continue
            numbers = columns.u32(entry.numbers)
            kept = numbers[live[numbers]]
            if len(kept) < len(numbers):
                self._narrow(entry, kept.tobytes())

    def _only_held(self) -> None:
        """As `keep`, by the subscriptions that are held."""
        for entry in list(self._entries.values()):
            numbers = columns.unpack(columns.UINT32, entry.numbers)
            kept = [number for number in numbers if number in self.subscriptions]
            if len(kept) < len(numbers):
                self._narrow(entry, columns.pack(columns.UINT32, kept))

    def _narrow(self, entry: Entry, numbers: bytes) -> None:
        if not numbers:
            if entry.position in self._deliveries:
                self._untold.setdefault(CLOSED, (0, {}))
                self._untold_positions.setdefault(CLOSED, []).append(entry.position)
            self._settle(entry.position)
            return
        gained = len(entry.numbers) - len(numbers)
        entry.numbers = numbers
        self._bytes -= gained
        self._room.bytes -= gained

    # What is valid -----------------------------------------------------------------------------------------------

    def serve(self, number: int, initial: Initial) -> None:
        """A subscription is opened that is to be given what is valid, before what it matches from here on."""
        assert number not in self._places, f"subscription {number} is served already"
        self._places[number] = Place(initial, self._next, self._next + RESERVED - 1)
        self._next += RESERVED
        self.serving[number] = self.initials[number] = initial
        self._journal.changed(self)

    def has_room(self, number: int) -> bool:
        """Tell whether a subscription may be given more of what is valid.

        Without a connection the queue is filled to the half of its quota. With one it may go beyond, as far as the
        client waits for it: what is live does not go before it is through.
        """
        config = self._config
        first = next(iter(self._places))
        if self.window and number == first:
            last = self._places[first].last
            waiting = sum(
                1 for position in islice(self._ready, AHEAD) if position <= last and position in self._entries
            )
            if waiting < AHEAD:
                return True
        return (
            2 * len(self._entries) < config.queue_messages
            and 2 * self._bytes < config.queue_bytes
            and self._room.bytes < config.total_bytes
        )

    def give(self, number: int, publications: Iterable[ValidPublication]) -> None:
        """Queue what is valid and matches a subscription that is served; on disk as with `push`."""
        place = self._places[number]
        own = columns.pack(columns.UINT32, [number])
        blocks = self.window > 0 and self._blocks(own)
        last = next(reversed(self._entries)) if self._entries else 0
        given = []
        for one in publications:
            assert place.next <= place.last, f"subscription {number} is given more than {RESERVED}"
            run = (one.publisher, one.instance, one.time_us)
            entry = Entry(place.next, run, one.sequence, own, one.payload, blocks, given=True)
            place.next += 1
            self._add(entry)
            given.append(entry)
        self._fresh += given
        positions = [entry.position for entry in given]
        self._unstored.update(positions)
        self._journal.changed(self)
        if positions and positions[0] < last:
            # Live ones are behind them: all are counted anew. A piece in some thousands: a few milliseconds.
            for position in sorted(self._entries):
                entry = self._entries.pop(position)
                self._append(entry)
            self._ready = deque(sorted([*self._ready, *positions]))
        else:
            self._ready.extend(positions)
        self._trim()

    def served(self, number: int) -> None:
        """The subscription has been given everything, or is closed: what it matches live may go."""
        place = self._places.pop(number)
        del self.serving[number]
        self._closed.append(place.last)
        if place.next <= place.last:
            self._settled.add_all(place.next, place.last)
        self._journal.changed(self)

    def _resume_serving(self, state: _State) -> None:
        """Go on where a former incarnation was."""
        closed = []
        for number, following, last, upto in state.places:
            held = self.subscriptions.get(number)
            initial = self.serving[number] = Initial(number, b"" if held is None else held.normal_form)
            initial.upto = upto
            self._places[number] = Place(initial, following, last)
            if held is None:
                closed.append(number)
                continue
            self.initials[number] = initial
            own = columns.pack(columns.UINT32, [number])
            for entry in self._entries.values():
                if entry.position > last and own in columns.cut(entry.numbers, [4] * (len(entry.numbers) // 4)):
                    initial.came_live(entry.run[:2], entry.sequence)
        for number in closed:
            self.served(number)
        for number in {number for number, *_ in state.given}:
            resumed = self.initials.get(number)
            if resumed is None:
                if number not in self.subscriptions:
                    continue
                resumed = self.initials[number] = Initial(number, self.subscriptions[number].normal_form)
                resumed.end()
            resumed.resume(one[1:] for one in state.given if one[0] == number)

    # The connection ----------------------------------------------------------------------------------------------

    def attach(self, window: int, instance: int, *, expires_s: int = 0, max_deliver: int = 0) -> None:
        """A client has connected; what is unsettled goes to it once that is on disk. 0: as it was."""
        assert not self.window, f"{self.client_id} is connected"
        assert window > 0, "a window of nothing"
        self.instance = instance
        self.expires_s = expires_s or self.expires_s
        self.max_deliver = max_deliver or self.max_deliver
        self.window = window
        self.detached_ms = None
        self._connection += 1
        self._open = False
        self._opens = True
        self._ready = deque(self._entries)
        self._journal.changed(self)

    def detach(self, now_ms: int) -> None:
        """The connection is gone: what was underway was delivered, and comes again."""
        if not self.window:
            return
        self.window = 0
        self.detached_ms = now_ms
        self._connection += 1
        self._open = self._opens = False
        underway = sorted(self._flight)
        self._flight.clear()
        self._refused = []
        self._used = self._used_bytes = self._freed = self._freed_bytes = 0
        self._count_deliveries(underway)
        self._only_held()
        for entry in self._entries.values():
            entry.blocks = False
        self._ready.clear()
        self._trim()
        self._journal.changed(self)

    def _count_deliveries(self, positions: Iterable[int]) -> None:
        for position in positions:
            entry = self._entries.get(position)
            if entry is None:
                continue
            self._sent = max(self._sent, position)
            count = self._deliveries[position] = self._deliveries.get(position, 0) + 1
            self._deliveries_changed = True
            if count >= self.max_deliver:
                self._drop(entry, MAX_DELIVER)

    def take(self) -> list[Portion]:
        """Return what may be sent now, as portions that fit one frame each; it counts as underway."""
        out: list[Portion] = []
        entries: list[Entry] = []
        size = 0
        if not self._open:
            return out
        gaps = self._settled.below(self._sent) >= self._config.unsettled_ranges
        closed = [*self._closed, *(place.last for place in islice(self._places.values(), 1))]
        end = min(closed, default=self._next)
        while self._ready and self._used < self.window:
            position = self._ready[0]
            entry = self._entries.get(position)
            if entry is None:
                self._ready.popleft()
                continue
            new = position > self._sent
            if position > min(self._stored, end) or position in self._unstored or (new and gaps):
                break
            if self._flight and self._used_bytes >= self._flow.flight_bytes:
                break
            self._ready.popleft()
            cost = entry.size
            self._used += 1
            self._used_bytes += cost
            self._flight[position] = cost
            self._sent = max(self._sent, position)
            if entries and size + cost > self._frame_bytes:
                out.append(self._portion(entries))
                entries, size = [], 0
            entries.append(entry)
            size += cost
        if entries:
            out.append(self._portion(entries))
        return out

    def _portion(self, entries: list[Entry]) -> Portion:
        return Portion(entries, [entry.position in self._deliveries for entry in entries])

    def consume(self, position: int) -> bool:
        """The client wants nothing up to the position any more. Returns False if it was never sent that far."""
        if not 0 <= position <= self._sent:
            return False
        while self._entries:
            first = next(iter(self._entries))
            if first > position:
                break
            self._settle(first)
        return True

    def acknowledge(self, positions: Iterable[int]) -> bool:
        """The client is done with these. Returns False if one of them was never sent."""
        for position in positions:
            if position > self._sent:
                return False
            if position in self._entries:
                self._settle(position)
        return True

    def refuse(self, positions: Iterable[int]) -> bool:
        """The client wants these again. Returns False if one of them was never sent."""
        for position in positions:
            if position > self._sent:
                return False
            if position not in self._flight:
                continue  # settled, or of a former connection: then it comes anyway
            self._count_deliveries([position])
            if position in self._entries:
                self._free(position)
                self._refused.append(position)
                self._journal.changed(self)
        return True

    def _settle(self, position: int) -> None:
        entry = self._entries.pop(position)
        self._bytes -= entry.size
        self._room.bytes -= entry.size
        self._deliveries.pop(position, None)
        self._settled.add(position)
        if position in self._flight:
            self._free(position)
        self._journal.changed(self)

    def _free(self, position: int) -> None:
        self._freed += 1
        self._freed_bytes += self._flight.pop(position)

    # Another home ------------------------------------------------------------------------------------------------

    def after(self) -> int:
        """Return where another home may begin with positions of its own: this one does not get there."""
        return self._next + RESERVED

    def arrive(self, after: int, source: int, handover: int, subscriptions: dict[int, Held]) -> None:
        """Collect what the subscriptions match from here on, for a session that still lives at another home."""
        self.arriving = source, handover
        self.marks = Watermarks(MARKS_KEPT)
        self._next = after
        self._stored = after - 1
        for number, held in subscriptions.items():
            self.hold(number, held)
        self._journal.changed(self)

    def freeze(self, to: int) -> None:
        """Take nothing more, once that is on disk."""
        self.frozen_to = to
        self._journal.changed(self)

    def handed(self) -> tuple[bytes, bytes, list[tuple[int, OneEntry]]]:
        """Return everything, for `take_over`: the state, the deliveries, and the notifications by position."""
        assert not self.window, f"{self.client_id} is connected"
        state = self._state()
        entries = [
            (entry.position, OneEntry(entry.run, entry.sequence, entry.numbers, entry.payload, entry.given))
            for entry in self._entries.values()
        ]
        return msgspec.msgpack.encode(state), msgspec.msgpack.encode(self._deliveries), entries

    def take_over(
        self,
        encoded: bytes,
        deliveries: bytes,
        entries: Iterable[tuple[int, OneEntry]],
        marks: Iterable[tuple[str, int, int]],
    ) -> None:
        """The session lives here from now on: what its former home had comes before what has come here, of which goes
        what was there too."""
        assert self.arriving is not None, f"{self.client_id} is at home"
        state = _state_decoder.decode(encoded)
        first = self._next if not self._entries else next(iter(self._entries))
        own = list(self._entries.values())
        begin = min((first, *(one for one, _ in self._settled.pairs())))
        assert state.next_position <= begin, "the former home has given positions of this one"
        self.arriving = None
        self.instance, self.expires_s, self.max_deliver = state.instance, state.expires_s, state.max_deliver
        self.name = state.name
        self._untold = dict(state.untold)
        self._discarded = state.upto
        self._settled.forget(state.upto)
        settled = [*state.settled]
        self._entries.clear()
        for position, one in entries:
            entry = Entry(position, one.run, one.sequence, one.numbers, one.payload, False, one.given)
            self._add(entry)
            self._fresh.append(entry)
        settled.append((state.next_position, begin - 1))
        mine, self._settled = self._settled.pairs(), Ranges()
        for low, high in (*settled, *mine):
            if low <= high and high > state.upto:
                self._settled.add_all(max(low, state.upto + 1), high)
        self._deliveries = _deliveries_decoder.decode(deliveries)
        self._deliveries_changed = True
        self._sent = max((state.upto, *(last for _, last in state.settled), *self._deliveries))
        self._unstored.update(entry.position for entry in self._fresh if entry.position < begin)
        for entry in own:
            self._append(entry)
        self._resume_serving(state)
        theirs = {(publisher, instance): sequence for publisher, instance, sequence in marks}
        for life, sequence in theirs.items():
            self.mark(life, sequence)
        for entry in own:
            numbers = columns.unpack(columns.UINT32, entry.numbers)
            life = entry.run[:2]
            if theirs.get(life, 0) >= entry.sequence:
                kept: list[int] = []
            else:
                kept = [
                    number
                    for number in numbers
                    if number not in self.initials or self.initials[number].admits(life, entry.sequence)
                ]
            if len(kept) < len(numbers):
                self._narrow(entry, columns.pack(columns.UINT32, kept))
        self._only_held()
        self._journal.changed(self)
        self._trim()

    @property
    def keeps_marks(self) -> bool:
        """It knows by itself what is new to it, or takes nothing."""
        return self.frozen or self.marks is not None

    def offered(self, chunk: Chunk) -> Chunk:
        """Return it without what this session, which has moved, has been offered before, here or at a former home."""
        assert self.marks is not None, f"{self.client_id} has not moved"
        kept: list[int] = []
        of_run = columns.unpack(columns.UINT32, chunk.run)
        for place, (run, sequence) in enumerate(
            zip(of_run, columns.unpack(columns.UINT64, chunk.sequence), strict=True)
        ):
            if self.mark(chunk.runs[run][:2], sequence):
                kept.append(place)
        return chunk if len(kept) == len(of_run) else chunk.select(np.array(kept, np.int64))

    def mark(self, life: tuple[str, int], sequence: int) -> bool:
        """Take note of what is offered, if the session has moved; tell whether it is new to it."""
        if self.marks is None or not self.marks.raise_to(life, sequence):
            return False
        self._journal.write(SaveMark(self.number, *life, sequence))
        return True

    # On disk -----------------------------------------------------------------------------------------------------

    @property
    def upto(self) -> int:
        """Every position up to this one is settled."""
        upto = next(iter(self._entries)) - 1 if self._entries else self._next - 1
        place = next(iter(self._places.values()), None)
        return upto if place is None else min(upto, place.next - 1)

    def gather(self) -> tuple[list[Write], _Receipt]:
        """Return what is to be written; see Journal."""
        given = [entry.position for entry in self._fresh if entry.position in self._unstored]
        writes = self._appends()
        upto = self.upto
        self._settled.forget(upto)
        if upto > self._discarded:
            self._discarded = upto
            writes.append(Discard(self.number, upto))
        writes.append(SaveSession(self.number, msgspec.msgpack.encode(self._state())))
        if self._deliveries_changed:
            self._deliveries_changed = False
            writes.append(SaveDeliveries(self.number, msgspec.msgpack.encode(self._deliveries)))
        receipt = _Receipt(
            self._connection,
            self._next - 1,
            self._freed,
            self._freed_bytes,
            self._refused,
            self._opens,
            given,
            list(self._closed),
        )
        self._freed = self._freed_bytes = 0
        self._refused = []
        self._opens = False
        return writes, receipt

    def _state(self) -> _State:
        return _State(
            self.client_id,
            self.instance,
            self.expires_s,
            self.max_deliver,
            self._next,
            self.upto,
            self._settled.pairs(),
            self.window,
            self._untold,
            [(number, place.next, place.last, place.initial.upto) for number, place in self._places.items()],
            [(number, *life) for number, initial in self.initials.items() for life in initial.given()],
            self.name,
            self.arriving,
            self.frozen_to,
            self.marks is not None,
        )

    def _appends(self) -> list[Write]:
        """Return what writes the fresh ones, a segment for each stretch of positions."""
        writes: list[Write] = []
        fresh, self._fresh = sorted(self._fresh, key=lambda entry: entry.position), []
        begin = 0
        for end in range(1, len(fresh) + 1):
            if end < len(fresh) and fresh[end].position == fresh[end - 1].position + 1:
                continue
            entries = [
                OneEntry(entry.run, entry.sequence, entry.numbers, entry.payload, entry.given)
                for entry in fresh[begin:end]
            ]
            encoded = msgspec.msgpack.encode(entries)
            writes.append(Append(self.number, fresh[begin].position, fresh[end - 1].position, encoded))
            begin = end
        return writes

    def on_disk(self, receipt: Any) -> None:
        """What was gathered is on disk."""
        assert isinstance(receipt, _Receipt), "a receipt of somebody else"
        self._stored = max(self._stored, receipt.last)
        self._unstored.difference_update(receipt.given)
        self._closed = [last for last in self._closed if last not in receipt.closed]
        if receipt.connection != self._connection:
            return
        self._used -= receipt.freed
        self._used_bytes -= receipt.freed_bytes
        self._open = self._open or receipt.opens
        self._ready.extendleft(sorted(receipt.refused, reverse=True))

    def end(self) -> None:
        """The session is over; it takes no room any more."""
        self._room.bytes -= self._bytes
        self._bytes = 0
        self._entries.clear()
        self._journal.gone(self)

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        assert self._bytes == sum(entry.size for entry in self._entries.values())
        assert list(self._entries) == sorted(self._entries), "positions ascend"
        assert all(position in self._entries for position in self._flight)
        assert all(position in self._entries for position in self._deliveries)
        assert len(self._flight) <= self._used <= self.window or not self.window
        assert not any(position in self._settled for position in self._entries)
        upto = self.upto
        known = [(position, position) for position in self._entries]
        known += [(max(first, upto + 1), last) for first, last in self._settled.pairs() if last > upto]
        known += [(place.next, place.last) for place in self._places.values() if place.next <= place.last]
        following = upto + 1
        for first, last in sorted(known):
            assert first == following, f"positions from {following} to {first - 1} are lost, or {first} is there twice"
            following = last + 1
        assert following == self._next, f"positions from {following} on are lost"
        assert all(position <= self._stored for position in self._flight), "sent and not stored"
        assert not self._unstored.intersection(self._flight), "sent and not stored"
        assert list(self.serving) == list(self._places)
        entries = list(self._entries.values())
        assert [entry.count for entry in entries] == sorted(entry.count for entry in entries)
        self._settled.check()
