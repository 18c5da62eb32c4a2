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
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from cluster import columns
from cluster.columns import Column
from cluster.config import Durable, Flow
from cluster.frames import Dropped, Notify
from cluster.journal import (
    Append,
    DeadLetter,
    Discard,
    Journal,
    RemoveSubscription,
    SaveDeliveries,
    SavedSession,
    SaveSession,
    SaveSubscription,
    Write,
)
from cluster.outbox import Chunk, Position
from cluster.ranges import Ranges

ENTRY_BYTES = 64
"""What a notification costs beyond its payload and its numbers, about, in memory and on disk."""

QUOTA, MAX_DELIVER, CLOSED = "quota", "max_deliver", "closed"
"""Why a notification is removed; the last is no loss, and tells the client that a position does not come again."""

Run = tuple[str, int, int]
"""(publisher, instance, microseconds since 1970)."""
OneEntry = tuple[Run, int, bytes, bytes]
"""A notification on disk: run, sequence, numbers, payload."""

_entries_decoder = msgspec.msgpack.Decoder(list[OneEntry])


class _State(msgspec.Struct, array_like=True):
    """What SaveSession holds. window: of the connection, 0 without one; settled: ranges above `upto`.

    untold: reason -> (notifications, number -> how many), what was dropped and the client was not told.
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


_state_decoder = msgspec.msgpack.Decoder(_State)
_deliveries_decoder = msgspec.msgpack.Decoder(dict[int, int])


class Held(NamedTuple):
    """A subscription. filter: as it was asked for."""

    filter: str
    policy: str
    normal_form: bytes


@dataclass(slots=True)
class Entry:
    """A notification that is not settled. end: bytes ever appended up to it; blocks: its publisher waits for room."""

    position: int
    run: Run
    sequence: int
    numbers: bytes
    payload: bytes
    end: int
    blocks: bool

    @property
    def size(self) -> int:
        """What it costs to keep."""
        return len(self.payload) + len(self.numbers) + ENTRY_BYTES


class Room:
    """Bytes that all durable sessions of a connection point hold."""

    def __init__(self) -> None:
        self.bytes = 0


@dataclass(frozen=True, slots=True)
class Portion:
    """Some notifications, for one frame. again: which of them are flagged."""

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
            bytes(self.again),
        )


class _Receipt(NamedTuple):
    """What `gather` has given to be written, and what follows from it once it is."""

    connection: int
    last: int
    freed: int
    freed_bytes: int
    refused: list[int]
    opens: bool


class DurableSession:
    """The session's durable half. number: it names the session for good.

    `journal` is told what has changed; `room` is shared by all sessions of the connection point.
    frame_bytes: what a Notify frame may take.
    """

    def __init__(
        self, number: int, client_id: str, journal: Journal, room: Room, config: Durable, flow: Flow, frame_bytes: int
    ) -> None:
        self.number = number
        self.client_id = client_id
        self.instance = 0
        self.expires_s = config.expires_s
        self.max_deliver = config.max_deliver
        self.subscriptions: dict[int, Held] = {}
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
        self._ends = 0  # bytes ever appended, as counted since the start
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
        session._next = state.next_position
        session._stored = state.next_position - 1
        session._settled = Ranges(state.settled)
        session._discarded = state.upto
        session._untold = dict(state.untold)
        for one in saved.subscriptions:
            session.subscriptions[one.number] = Held(one.filter, one.policy, one.normal_form)
        for first, _, encoded in saved.segments:
            for position, (run, sequence, numbers, payload) in enumerate(_entries_decoder.decode(encoded), first):
                if position > state.upto and position not in session._settled:
                    session._add(Entry(position, run, sequence, numbers, payload, 0, False))
        if saved.deliveries:
            known = _deliveries_decoder.decode(saved.deliveries)
            session._deliveries = {one: count for one, count in known.items() if one in session._entries}
        settled = (last for _, last in state.settled)
        session._sent = max((state.upto, *settled, *session._deliveries))
        session._only_held()
        if state.window:
            session._count_deliveries(list(session._entries)[: state.window])
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
            entry = Entry(self._next, chunk.runs[run], sequence, own, payload, 0, self.window > 0 and self._blocks(own))
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
        self._ends += size
        entry.end = self._ends
        self._entries[entry.position] = entry
        self._bytes += size
        self._room.bytes += size

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
        return position - head.position < self._flow.queue_messages and (
            last is None or last.end - (head.end - head.size) <= self._flow.queue_bytes
        )

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
        while self._ready and self._used < self.window:
            position = self._ready[0]
            entry = self._entries.get(position)
            if entry is None:
                self._ready.popleft()
                continue
            new = position > self._sent
            if position > self._stored or (new and gaps):
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

    # On disk -----------------------------------------------------------------------------------------------------

    @property
    def upto(self) -> int:
        """Every position up to this one is settled."""
        return next(iter(self._entries)) - 1 if self._entries else self._next - 1

    def gather(self) -> tuple[list[Write], _Receipt]:
        """Return what is to be written; see Journal."""
        writes: list[Write] = []
        if self._fresh:
            entries = [(entry.run, entry.sequence, entry.numbers, entry.payload) for entry in self._fresh]
            first, last = self._fresh[0].position, self._fresh[-1].position
            writes.append(Append(self.number, first, last, msgspec.msgpack.encode(entries)))
            self._fresh = []
        upto = self.upto
        self._settled.forget(upto)
        if upto > self._discarded:
            self._discarded = upto
            writes.append(Discard(self.number, upto))
        state = _State(
            self.client_id,
            self.instance,
            self.expires_s,
            self.max_deliver,
            self._next,
            upto,
            self._settled.pairs(),
            self.window,
            self._untold,
        )
        writes.append(SaveSession(self.number, msgspec.msgpack.encode(state)))
        if self._deliveries_changed:
            self._deliveries_changed = False
            writes.append(SaveDeliveries(self.number, msgspec.msgpack.encode(self._deliveries)))
        receipt = _Receipt(self._connection, self._next - 1, self._freed, self._freed_bytes, self._refused, self._opens)
        self._freed = self._freed_bytes = 0
        self._refused = []
        self._opens = False
        return writes, receipt

    def on_disk(self, receipt: Any) -> None:
        """What was gathered is on disk."""
        assert isinstance(receipt, _Receipt), "a receipt of somebody else"
        self._stored = max(self._stored, receipt.last)
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
        for position in range(upto + 1, self._next):
            assert (position in self._entries) != (position in self._settled), f"position {position} is lost"
        assert all(position <= self._stored for position in self._flight), "sent and not stored"
        self._settled.check()
