"""The durable session: what others do with it, said to its parts in order.

It may change its home (`serving/handing.py`). Before, the one to come collects what the subscriptions match there too,
at positions far behind (`arriving`); in the end the present one takes nothing any more (`frozen_to`), and everything it
has is taken over. What both have taken is known by how far the former one got of each publisher; from then on the
session has `marks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from cluster import columns
from cluster.columns import Column
from cluster.config import Durable, Flow
from cluster.durable.entries import Entry, Held, OneEntry, Portion, decode_entries
from cluster.durable.losses import Losses
from cluster.durable.marks import Marks
from cluster.durable.places import RESERVED, Places
from cluster.durable.queue import Queue, Room
from cluster.durable.sending import Freed, Sending
from cluster.durable.settling import Settling
from cluster.durable.state import State, decode_deliveries, decode_state
from cluster.frames import Dropped
from cluster.initial import Initial
from cluster.journal import (
    ForgetMarks,
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

AHEAD = 512
"""What is valid is given to a client that is connected as long as fewer than so many wait to be sent before it."""


class _Receipt(NamedTuple):
    """What `gather` has given to be written, and what follows from it once it is. given: below others on disk."""

    last: int
    freed: Freed
    given: list[int]
    closed: list[int]


class DurableSession:
    """A session's durable half. number: it names the session for good.

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
        self.marks: Marks | None = None
        """Of a session that has moved not long ago, or arrives: what it has been offered last of each publisher."""
        self.instance = 0
        self.expires_s = config.expires_s
        self.subscriptions: dict[int, Held] = {}
        self.detached_ms: int | None = None
        """Since when there is no connection; None while there is one, or until the first Tick after a restart."""
        self._journal = journal
        self._flow = flow
        self._queue = Queue(number, room, config)
        self._places = Places(self._queue)
        self._sending = Sending(self._queue, config, flow, frame_bytes)
        self._losses = Losses()
        self._settling = Settling(
            client_id, config.max_deliver, self._queue, self._sending, self._losses, journal, self._changed
        )

    @classmethod
    def restored(
        cls, saved: SavedSession, journal: Journal, room: Room, config: Durable, flow: Flow, frame_bytes: int
    ) -> DurableSession:
        """Return the session as a former incarnation has left it; what may have been underway counts as delivered."""
        state = decode_state(saved.state)
        session = cls(saved.session, state.client_id, journal, room, config, flow, frame_bytes)
        queue, sending = session._queue, session._sending
        session.instance = state.instance
        session.expires_s = state.expires_s
        session._settling.max_deliver = state.max_deliver
        session.name = state.name or saved.session
        session.arriving, session.frozen_to = state.arriving, state.frozen_to
        session.frozen = state.frozen_to is not None
        if state.moved:
            session.marks = Marks(saved.marks)
        queue.next = state.next_position
        queue.stored = state.next_position - 1
        queue.settled = Ranges(state.settled)
        queue.discarded = state.upto
        session._losses.untold = dict(state.untold)
        for held in saved.subscriptions:
            session.subscriptions[held.number] = Held(held.filter, held.policy, held.normal_form)
        for first, _, encoded in saved.segments:
            for position, one in enumerate(decode_entries(encoded), first):
                if position > state.upto and position not in queue.settled:
                    queue.add(Entry.stored(position, one), stored=True)
        session._resume_places(state)
        if saved.deliveries:
            known = decode_deliveries(saved.deliveries)
            sending.deliveries = {one: count for one, count in known.items() if one in queue.entries}
        sending.sent = max((state.sent, *sending.deliveries))
        session._settling.only(session.subscriptions)
        if state.window:
            first_place = session._places.first
            last = queue.next if first_place is None else first_place[1].last
            may_go = [position for position in queue.entries if position <= last]
            session._settling.delivered(may_go[: state.window])
            journal.changed(session)
        return session

    def _changed(self) -> None:
        self._journal.changed(self)

    # What it is owed ---------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Notifications that are not settled and not underway."""
        return len(self._queue) - len(self._sending.flight)

    @property
    def unsettled(self) -> int:
        """Notifications that are not settled."""
        return len(self._queue)

    @property
    def held_bytes(self) -> int:
        """What these cost to keep."""
        return self._queue.bytes

    def take_counts(self) -> tuple[int, int]:
        """Return how many were removed for want of room, and how many went to the dead letters, since last asked."""
        return self._losses.take_counts()

    def find(self, publisher: str, sequence: int) -> dict[str, Any] | None:
        """Return where the notification of a publication is, for `why.py`; None if none is unsettled."""
        for entry in reversed(self._queue.entries.values()):
            if entry.sequence == sequence and entry.run[0] == publisher:
                state = "sent" if entry.position in self._sending.flight else "waiting"
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
            entry = self._queue.push(chunk.runs[run], sequence, own, payload, blocks=self._blocks(own))
            self._sending.ready.append(entry.position)
            if entry.blocks:
                blocked = Position(entry.position)
        self._changed()
        self._settling.trim()
        return blocked

    @property
    def last(self) -> Position:
        """The position of the last one that a publisher may wait for, for `admits`."""
        return Position(self._queue.next - 1 if self.window else 0)

    def _blocks(self, numbers: bytes) -> bool:
        """Tell whether who has published it waits for room."""
        if not self.window:
            return False
        for number in columns.unpack(columns.UINT32, numbers):
            subscription = self.subscriptions.get(number)
            if subscription is not None and subscription.policy == "block":
                return True
        return False

    def admits(self, position: Position) -> bool:
        """Tell whether everything up to the position is gone or lies within the queue's limit; at worst it says no for
        longer. Without a connection it always does: then the quota bounds the queue."""
        if not self.window:
            return True
        head = self._sending.next()
        if head is None:
            return True
        messages, size = self._queue.extent(head, position)
        return messages < self._flow.queue_messages and size <= self._flow.queue_bytes

    def take_drops(self) -> list[Dropped]:
        """Return what the client is to be told of what was removed since the last call."""
        frames = self._losses.take()
        if frames:
            self._changed()
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
        self._settling.keep(live)

    # What is valid -----------------------------------------------------------------------------------------------

    @property
    def serving(self) -> dict[int, Initial]:
        """By number, the subscriptions that are being given what is valid."""
        return self._places.serving

    @property
    def initials(self) -> dict[int, Initial]:
        """These, and those that may still get live what they were given; the connection point takes them out."""
        return self._places.initials

    def serve(self, number: int, initial: Initial) -> None:
        """A subscription is opened that is to be given what is valid, before what it matches from here on."""
        self._places.open(number, initial)
        self._changed()

    def has_room(self, number: int) -> bool:
        """Tell whether a subscription may be given more of what is valid.

        Without a connection the queue is filled to the half of its quota. With one it may go beyond, as far as the
        client waits for it: what is live does not go before it is through.
        """
        first = self._places.first
        if self.window and first is not None and number == first[0]:
            last, entries = first[1].last, self._queue.entries
            ahead = islice(self._sending.ready, AHEAD)
            if sum(1 for position in ahead if position <= last and position in entries) < AHEAD:
                return True
        return self._queue.half_empty

    def give(self, number: int, publications: Iterable[ValidPublication]) -> None:
        """Queue what is valid and matches a subscription that is served; on disk as with `push`."""
        entries = self._queue.entries
        last = next(reversed(entries)) if entries else 0
        blocks = self._blocks(columns.pack(columns.UINT32, [number]))
        positions = self._places.give(number, publications, blocks=blocks)
        self._changed()
        if positions and positions[0] < last:
            # Live ones are behind them.
            self._queue.sort()
            self._sending.insert(positions)
        else:
            self._sending.ready.extend(positions)
        self._settling.trim()

    def served(self, number: int) -> None:
        """The subscription has been given everything, or is closed: what it matches live may go."""
        self._places.close(number)
        self._changed()

    def _resume_places(self, state: State) -> None:
        if self._places.resume(state.places, state.given, self.subscriptions):
            self._changed()

    # The connection ----------------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """How many notifications the client takes at once; 0 while there is no connection."""
        return self._sending.window

    @property
    def is_open(self) -> bool:
        """That the client is connected is on disk."""
        return self._sending.is_open

    def has_credit(self) -> bool:
        """Tell whether the client may be sent more."""
        return self._sending.has_credit

    def attach(self, window: int, instance: int, *, expires_s: int = 0, max_deliver: int = 0) -> None:
        """A client has connected; what is unsettled goes to it once that is on disk. 0: as it was."""
        assert not self.window, f"{self.client_id} is connected"
        assert window > 0, "a window of nothing"
        self.instance = instance
        self.expires_s = expires_s or self.expires_s
        self._settling.max_deliver = max_deliver or self._settling.max_deliver
        self.detached_ms = None
        self._sending.attach(window)
        self._changed()

    def detach(self, now_ms: int | None) -> None:
        """The connection is gone: what was underway was delivered, and comes again. None: not known when; the session
        is kept for its time from when `Homes.expired` first looks."""
        if not self.window:
            return
        self.detached_ms = now_ms
        self._settling.delivered(self._sending.detach())
        self._settling.only(self.subscriptions)
        for entry in self._queue.entries.values():
            entry.blocks = False
        self._settling.trim()
        self._changed()

    def take(self) -> list[Portion]:
        """Return what may be sent now, as portions that fit one frame each; it counts as underway."""
        return self._sending.take(self._places.end)

    def consume(self, position: int) -> bool:
        """The client wants nothing up to the position any more. Returns False if it was never sent that far."""
        return self._settling.consume(position)

    def acknowledge(self, positions: Iterable[int]) -> bool:
        """The client is done with these. Returns False if one of them was never sent."""
        return self._settling.acknowledge(positions)

    def refuse(self, positions: Iterable[int]) -> bool:
        """The client wants these again. Returns False if one of them was never sent."""
        return self._settling.refuse(positions)

    # Another home ------------------------------------------------------------------------------------------------

    def after(self) -> int:
        """Return where another home may begin with positions of its own: this one does not get there."""
        return self._queue.next + RESERVED

    def arrive(self, after: int, source: int, handover: int, subscriptions: dict[int, Held]) -> None:
        """Collect what the subscriptions match from here on, for a session that still lives at another home."""
        self.arriving = source, handover
        self.marks = Marks()
        self._queue.next = after
        self._queue.stored = after - 1
        for number, held in subscriptions.items():
            self.hold(number, held)
        self._changed()

    def freeze(self, to: int) -> None:
        """Take nothing more, once that is on disk."""
        self.frozen_to = to
        self._changed()

    def handed(self) -> tuple[bytes, bytes, list[tuple[int, OneEntry]]]:
        """Return everything, for `take_over`: the state, the deliveries, and the notifications by position."""
        assert not self.window, f"{self.client_id} is connected"
        entries = [(entry.position, entry.to_store()) for entry in self._queue.entries.values()]
        return msgspec.msgpack.encode(self._state()), msgspec.msgpack.encode(self._sending.deliveries), entries

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
        state = decode_state(encoded)
        self.arriving = None
        self.instance, self.expires_s = state.instance, state.expires_s
        self._settling.max_deliver = state.max_deliver
        self.name = state.name
        self._losses.untold = dict(state.untold)
        own = self._queue.put_before(state.upto, state.next_position, state.settled, entries)
        sending = self._sending
        sending.deliveries = decode_deliveries(deliveries)
        sending.counted = True
        sending.sent = max((state.sent, *sending.deliveries))
        self._resume_places(state)
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
                self._settling.narrow(entry, columns.pack(columns.UINT32, kept))
        self._settling.only(self.subscriptions)
        self._changed()
        self._settling.trim()

    @property
    def keeps_marks(self) -> bool:
        """It knows by itself what is new to it, or takes nothing."""
        return self.frozen or self.marks is not None

    def offered(self, chunk: Chunk) -> Chunk:
        """Return it without what this session, which has moved, has been offered before, here or at a former home."""
        assert self.marks is not None, f"{self.client_id} has not moved"
        return self.marks.new_of(chunk, self.mark)

    def mark(self, life: tuple[str, int], sequence: int) -> bool:
        """Take note of what is offered, if the session has moved; tell whether it is new to it."""
        if self.marks is None or not self.marks.raise_to(life, sequence):
            return False
        self._journal.write(SaveMark(self.number, *life, sequence))
        return True

    def count_anew(self) -> None:
        """A recovery: what was under way comes again."""
        if self.marks is not None:
            self.marks.since_ms = None

    def see_marks(self, now_ms: int, away_ms: int) -> None:
        """Let the marks end when they can no longer matter; see marks.py."""
        if self.marks is not None and self.frozen_to is None and self.marks.over(now_ms, away_ms):
            self.marks = None
            self._journal.write(ForgetMarks(self.number))
            self._changed()

    # On disk -----------------------------------------------------------------------------------------------------

    @property
    def upto(self) -> int:
        """Every position up to this one is settled."""
        return self._queue.upto(self._places.free)

    def gather(self) -> tuple[list[Write], _Receipt]:
        """Return what is to be written; see Journal."""
        queue = self._queue
        given = queue.fresh_below_stored()
        writes = [*queue.appends(), *queue.discard(self.upto)]
        writes.append(SaveSession(self.number, msgspec.msgpack.encode(self._state())))
        if self._sending.counted:
            self._sending.counted = False
            writes.append(SaveDeliveries(self.number, msgspec.msgpack.encode(self._sending.deliveries)))
        return writes, _Receipt(queue.next - 1, self._sending.gather(), given, list(self._places.closed))

    def _state(self) -> State:
        queue, places = self._queue, self._places
        return State(
            self.client_id,
            self.instance,
            self.expires_s,
            self._settling.max_deliver,
            queue.next,
            self.upto,
            queue.settled.pairs(),
            self.window,
            self._losses.untold,
            places.placed(),
            places.given(),
            self.name,
            self.arriving,
            self.frozen_to,
            self.marks is not None,
        )

    def on_disk(self, receipt: Any) -> None:
        """What was gathered is on disk."""
        assert isinstance(receipt, _Receipt), "a receipt of somebody else"
        self._queue.stored = max(self._queue.stored, receipt.last)
        self._queue.unstored.difference_update(receipt.given)
        self._places.on_disk(receipt.closed)
        self._sending.on_disk(receipt.freed)

    def end(self) -> None:
        """The session is over; it takes no room any more."""
        self._queue.end()
        self._journal.gone(self)

    def check(self) -> None:
        """Assert every invariant; costly, for tests."""
        queue, places = self._queue, self._places
        for part in (queue, places, self._sending):
            part.check()
        upto = self.upto
        known = [(position, position) for position in queue.entries]
        known += [(max(first, upto + 1), last) for first, last in queue.settled.pairs() if last > upto]
        known += places.free_stretches()
        following = upto + 1
        for first, last in sorted(known):
            assert first == following, f"positions from {following} to {first - 1} are lost, or {first} is there twice"
            following = last + 1
        assert following == queue.next, f"positions from {following} on are lost"
