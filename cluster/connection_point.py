"""The connection point: clients' sessions at the edge of the cluster.

It reads the frames of its clients, checks their limits, and forwards publications as runs without looking into them;
it turns filters into normal forms; it writes notifications to subscribers as their credit allows.

A connection goes through these states; anything else than what a state expects ends it with a Bye that says why:

    WAITING   accepted; one Hello of at most 4 kB within 5 s
    OPEN      logged in; frames in any order
    (gone)    closed by either side; its subscriptions are removed from the matchers

Order: publications and subscription changes of a client go to one access point, in the order they came. Publications
are gathered until Drained; a change sends what was gathered before it first.

Turns: no client may keep the others waiting. Each has an allowance of work for a round, which ends with Drained; what
it sends beyond it waits, its socket is not read meanwhile, and the next round goes on where this one stopped. A client
that does not read what it is told is not listened to either, until it does. Changes that the matchers have not
answered are bounded over all clients; the next ones wait their turn too.

A view change touches clients only if access points come or go: then what a client sends goes to its new one from
Commit on, behind a Switch on every lane there, by which the later hops keep the order. A connection point that is to
leave asks its clients to move first, lets no new ones in, and is left out of a view when the last is gone. A client
that has moved is let go after a view change that began thereafter: then everything that was underway for it has come.

Recovery: when a role of another layer has died, all that was underway there is void. What this connection point has
taken from its clients is held here until it is acknowledged, and is sent again: first the subscriptions that a new
matcher lacks and the changes that are not answered, then the publications. What it delivers twice by that is known
by (publisher, instance, sequence), as each publisher's publications come in their order, and is left out.

A durable session (`durable.py`) outlives its connections, and this incarnation: what it is owed is on disk. Whatever
promises that waits until it is so: the token of a run that it gets something of, the answer to a subscription, Welcome.
It has a client key of its own, by which it gets notifications for as long as it lives, and for each connection another
one, under which that one publishes, so that no acknowledgement is taken for a later connection's.

Validity: what is published with `valid_for` is kept here (`validity.py`). A subscription that wants what is valid gets
it before anything else: from its Subscribe on until that is written nothing is taken from the session's outbox.

The hard case is a subscriber that does not keep up; `outbox.py` decides about it. A run whose notifications are not
within their queues is held back: Delivered for its token goes to the exit point when the last of them is.
A notification for a subscription that was closed meanwhile is removed here, as it comes or from the outbox, so that
after Done nothing arrives.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from cluster import columns, frames
from cluster.codec import FrameReader, FrameTooLargeError, decode_client_frame, encode_frame
from cluster.config import Config
from cluster.durable import DurableSession, Held
from cluster.errors import CodecError, FilterError, PolicyError
from cluster.frames import INITIAL_NONE, INITIAL_VALID, SUBSCRIPTION_BITS, UNTIL_UNPUBLISHED, Bye
from cluster.homes import Homes
from cluster.initial import Initial, admitted, frame_of
from cluster.journal import Recovered, Took
from cluster.language import Filter, FilterLimits, encode_normal, parse
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    NUMBER_BITS,
    Abort,
    Acknowledge,
    Again,
    Changed,
    ChangeSubscriptions,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    ClientFree,
    ClientFull,
    ClientKey,
    ClientsMoved,
    CloseClient,
    Commit,
    Deliver,
    Delivered,
    Drain,
    Drained,
    DurableEnded,
    DurableHomes,
    Emptied,
    Ended,
    EpochEnd,
    EpochEnded,
    Event,
    Explain,
    Explained,
    FindHome,
    Flush,
    HomeFound,
    Install,
    Instruction,
    LaneUp,
    Message,
    MoveClients,
    PauseClient,
    Peer,
    Prepare,
    Publications,
    Rebuild,
    Rebuilt,
    Received,
    Recover,
    Relay,
    Renew,
    Restored,
    Resume,
    ResumeClient,
    Retire,
    Run,
    Send,
    SendClient,
    Serve,
    ServeClients,
    SessionClosed,
    SessionOpened,
    SessionTaken,
    Settled,
    Stored,
    SubscriptionChange,
    Switch,
    Tick,
    client_key,
    slot_of,
    subscription_id,
)
from cluster.outbox import REASONS, Chunk, Outbox, Position
from cluster.policy import policy_of
from cluster.rebuilding import Rebuilding
from cluster.recent import Recent
from cluster.routing import access_point_of
from cluster.validity import PIECE, Validity
from cluster.view import View, view_of
from cluster.watermarks import Watermarks
from cluster.why import explained

DROPPED_FOR = {reason: f"dropped_{reason.removeprefix('drop_')}" for reason in REASONS}
"""Counters by reason; `dropped` is their sum."""
DURABLE_POLICIES = ("block", "drop_oldest")
"""Of durable sessions; see durable.py."""
SESSION_MASK = (1 << 32) - 1
"""Sessions count on from the incarnation's own start, so that no id of an earlier incarnation comes back."""
SESSIONS_PER_INCARNATION = 1 << 20
SUBSCRIPTION_MASK = (1 << SUBSCRIPTION_BITS) - 1
PUBLISHERS_REMEMBERED = 1_000_000
"""Whose last delivered sequence is kept; about 200 bytes each."""

ROUND_US = 2000
TURN_US, TURN_US_MIN = 1000, 100
"""What all clients that are behind may cost in a round, and one of them, in about microseconds of one core; the costs
below are as measured. So others wait about two milliseconds for a flood, and a lone client loads its ten thousand
subscriptions with few rounds."""
FRAMES_PER_US = 2
"""Cut from the stream; paid when they come, and the rest when they are handled."""
FRAME_US = 5
KEEP_US = 10
"""For each publication with valid_for."""
SERVED_AT_ONCE = 16
"""Subscriptions of one session that are being given what is valid; each may have a piece here of every connection
point."""
FORGET_MS = 1000
PUBLISH_US = 20
CHANGE_US = 20
"""And one more for every two bytes of a filter, and for every ten bytes of its normal form."""
OVER_LIMIT_US = 10_000
"""A filter that is refused for a limit: finding out may take as long as for the costliest that is not."""
CHANGES_UNDERWAY = 1024
CHANGE_BYTES_UNDERWAY = 128 << 10
"""Changes, and bytes of normal forms, that may await the matchers' answer; one change may go over it. A matcher takes
about 30 ms for a normal form at the limit of 1,024 conjunctions, which all others wait for."""


@dataclass(slots=True)
class Connection:
    """A socket and what its client may still send. `heard_ms`, `since_ms`, `partial_ms`: monotonic, for deadlines.

    bodies:    frames that have come and wait for the client's turn; not empty if and only if it is `_behind`.
    allowance: microseconds left of this round; below 0 where one frame cost more, to be made up for.
    asked:     Hello for a durable session whose home is not known here; the coordinator is asked, and frames wait.
    waits:     the next frame is a change, and too many are under way; or it has to wait for the end of a recovery.
    full_ms:   since when the client has not read what was written; None while it reads.
    paused:    its socket is not read.
    ended:     the socket is gone; what had come before is still handled.
    now_us:    when the last bytes came, microseconds since 1970.
    """

    number: int
    reader: FrameReader
    since_ms: int
    heard_ms: int
    partial_ms: int | None = None
    session: Session | None = None
    bodies: deque[bytes] = field(default_factory=deque)
    allowance: int = TURN_US
    asked: frames.Hello | None = None
    waits: bool = False
    full_ms: int | None = None
    paused: bool = False
    ended: bool = False
    now_us: int = 0


@dataclass(slots=True)
class Change:
    """A change of a subscription that the matchers have not answered.

    closed: its number if it is removed. size: bytes of a normal form that count as underway.
    connection, portion: of a durable session, who has asked, and with what the journal has it on disk.
    """

    session: int
    request: int | None
    closed: int | None
    size: int
    message: SubscriptionChange
    connection: int | None = None
    portion: int = 0


@dataclass(slots=True)
class Session:
    """A client that has logged in.

    moved:           it holds everything at another connection point as well, and waits for what is underway; arrived:
                     that is all in its outbox.
    next_sequence:   the number its next publication must have; None before the first.
    unacknowledged:  per Publish frame that is not acknowledged: its run, lengths and payload; `flight_bytes` in all.
    subscriptions:   the change that opened or last updated it, by number; asked: its policy, and when the client asked
                     for it, microseconds since 1970.
    live:            by subscription number, whether it is open; grows with the numbers used. closed_any: whether any
                     was ever closed; closed_now: since the last Drained, so that the outbox is to be cleared of it.
    holds:           runs that wait for a place in the outbox: (position, [(exit point, token)]).
    stalled_ms:      since when holds exist and nothing was consumed.
    connection:      None while a durable session has none. publisher: the client's key for what it publishes.
    durable:         what a durable session is owed; its outbox stays empty.
    greeting:        of a durable session, the arguments of the Welcome that waits until the connection is on disk and
                     the matchers have answered its changes, `unanswered` of them: what it names as held is in force.
    serving:         by number, the subscriptions that are being given what is valid, or are to be; until it is empty
                     the outbox waits. initials: these, and those that may still get live what they were given.
    kept_any:        it has published with valid_for. not_kept: (sequence, reason), until they are acknowledged.
    """

    connection: int | None
    client_id: str
    key: ClientKey
    instance: int
    access_point: Peer
    outbox: Outbox
    next_sequence: int | None = None
    acknowledged: int = 0
    unacknowledged: deque[tuple[Run, bytes, bytes]] = field(default_factory=deque)
    flight_bytes: int = 0
    live: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(64, np.bool_))
    subscriptions: dict[int, SubscriptionChange] = field(default_factory=dict)
    asked: dict[int, tuple[str, int]] = field(default_factory=dict)
    closed_any: bool = False
    closed_now: bool = False
    holds: deque[tuple[Position, list[tuple[int, int]]]] = field(default_factory=deque)
    stalled_ms: int | None = None
    moved: bool = False
    arrived: bool = False
    serving: dict[int, Initial] = field(default_factory=dict)
    initials: dict[int, Initial] = field(default_factory=dict)
    kept_any: bool = False
    not_kept: list[tuple[int, str]] = field(default_factory=list)
    publisher: int = 0
    durable: DurableSession | None = None
    greeting: tuple[bool, list[tuple[int, str, str]]] | None = None
    unanswered: int = 0

    def admits(self, position: Position) -> bool:
        """Tell whether what was queued up to the position is within the queue's limit."""
        return self.outbox.admits(position) if self.durable is None else self.durable.admits(position)


class Refusal(Exception):
    """Ends a connection; becomes the Bye frame."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.bye = Bye(code, reason)


class ConnectionPoint:
    """The machine. `slot` and `incarnation` are its own; `config` gives the limits."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        self._slot = slot
        self._peer = Peer(CONNECTION_POINT, slot)
        self._limits = config.client_limits
        self._flow = config.flow
        self._timing = config.timing
        self._filters = FilterLimits(
            **msgspec.structs.asdict(config.filters), name_bytes=config.client_limits.name_bytes
        )
        self._view: View | None = None
        self._next: View | None = None
        self._moving: list[str] | None = None  # where clients are to move, once this connection point is to leave
        self._asked = 0  # the number of that MoveClients
        self._ended_by: tuple[int, set[int]] = (0, set())  # an epoch, and the exit points that have begun it
        self._flushed: set[int] = set()  # sessions that had moved before the present view change began
        self._now_ms = 0
        self._next_session = incarnation * SESSIONS_PER_INCARNATION & SESSION_MASK
        self._next_change = incarnation << NUMBER_BITS
        self._connections: dict[int, Connection] = {}
        self._waiting: dict[int, Connection] = {}
        self._sessions: dict[int, Session] = {}  # by session number
        self._by_client_id: dict[str, Session] = {}
        self._publishers = 0  # sessions that have published
        self._pool_bytes = 0  # unacknowledged payload of all sessions
        self._behind: dict[int, Connection] = {}  # connections whose frames wait, the next to have its turn first
        self._spent: dict[int, Connection] = {}  # connections without their full allowance
        self._changes: dict[int, Change] = {}
        self._change_bytes = 0
        self._recovering = False  # from Recover to Resume: nothing is sent to access points but what Rebuild asks for
        self._unsent: list[tuple[Peer, list[SubscriptionChange]]] = []  # of clients that have gone since then
        self._rebuilding: Rebuilding | None = None
        self._watermarks = Watermarks(PUBLISHERS_REMEMBERED)  # of what was delivered here
        self._homes = Homes(config)
        self._journal = self._homes.journal
        self._asking: Counter[str] = Counter()  # client id -> questions about its home that are not answered
        self._durable = config.durable
        self._publishing: dict[int, Session] = {}  # durable sessions, by the number that they publish under
        self._unregistered: list[Session] = []  # restored ones, whose subscriptions the matchers may not know
        self._recoveries = 0  # tokens of before one mean nothing after it
        self._gathered: dict[Peer, list[tuple[Run, bytes, bytes]]] = {}
        self._held: dict[tuple[int, int], int] = {}  # (exit point, token) -> sessions that hold it
        self._delivered: dict[int, list[int]] = {}  # exit point -> tokens to send
        self._touched: dict[int, Session] = {}  # sessions with something to write
        self._recent = Recent()
        self._out: list[Instruction] = []
        self._validity = Validity(slot, incarnation, config, self._relay)
        self.counters = dict.fromkeys(
            (
                *("accepted", "acknowledged", "rejected", "notifications", "duplicates", "connections", "sessions"),
                *("refused", "sent_again", "valid_given", "slow_disconnected", "dropped", *DROPPED_FOR.values()),
                *("dropped_quota", "redelivered", "dead_letters"),
            ),
            0,
        )

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case ClientBytes():
                self._client_bytes(event)
            case Received(peer, message):
                self._received(peer, message)
            case Drained():
                self._flush()
            case Tick(now_ms):
                self._tick(now_ms)
            case ClientConnected(connection):
                self._connected(connection)
            case ClientClosed(connection):
                self._closed(connection)
            case ClientFull(number):
                self._full(number, True)
            case ClientFree(number):
                self._full(number, False)
            case LaneUp(peer) if peer == COORDINATOR_PEER:
                self._report_sessions()
            case Stored(upto):
                for one in self._journal.stored(upto):
                    assert isinstance(one, DurableSession), "a journal of others"
                    if one.number in self._sessions:
                        self._touched[one.number] = self._sessions[one.number]
            case Restored(memory):
                self._restore(memory)
            case _:
                pass  # other LaneUp, LaneDown: lanes keep what is sent
        out, self._out = self._out, []
        return out

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        return self.counters | {
            "queued": sum(session.outbox.queued for session in self._sessions.values()),
            "durable_sessions": len(self._homes),
            "durable_queued": self._homes.queued,
            "durable_bytes": self._homes.room.bytes,
            "unstored_portions": self._journal.underway,
            "unacknowledged_bytes": self._pool_bytes,
            "subscriptions": sum(len(session.subscriptions) for session in self._sessions.values()),
            "held_runs": len(self._held),
            "changes_underway": len(self._changes),
            **self._validity.gauges(),
        }

    # Connections -------------------------------------------------------------------------------------------------

    def _connected(self, number: int) -> None:
        if len(self._connections) >= self._limits.connections:
            self._end(number, Bye("too_many", f"{self._limits.connections} connections are open"))
            return
        if len(self._waiting) >= self._limits.waiting_clients:
            oldest = next(iter(self._waiting.values()))
            self._refuse(oldest, Bye("too_many", f"{self._limits.waiting_clients} connections wait for their Hello"))
        connection = Connection(number, FrameReader(self._limits.first_frame_bytes), self._now_ms, self._now_ms)
        self._connections[number] = self._waiting[number] = connection
        self.counters["connections"] = len(self._connections)

    def _closed(self, number: int) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        if connection.bodies and connection.session is not None:
            # What a client sent before it left counts, be its turn yet to come.
            connection.ended = True
            connection.full_ms = None
            return
        self._forget(connection)

    def _full(self, number: int, full: bool) -> None:
        connection = self._connections.get(number)
        if connection is None or connection.ended:
            return
        connection.full_ms = self._now_ms if full else None
        if full:
            self._pause(connection)
            return
        if connection.session is not None:
            self._touched[connection.session.key & SESSION_MASK] = connection.session
        if not connection.bodies:
            self._resume(connection)

    def _pause(self, connection: Connection) -> None:
        if not connection.paused:
            connection.paused = True
            self._out.append(PauseClient(connection.number))

    def _resume(self, connection: Connection) -> None:
        if connection.paused:
            connection.paused = False
            # It could not be heard meanwhile: its deadlines begin anew.
            connection.heard_ms = self._now_ms
            if connection.partial_ms is not None:
                connection.partial_ms = self._now_ms
            self._out.append(ResumeClient(connection.number))

    def _end(self, number: int, bye: Bye) -> None:
        self._out.append(SendClient(number, encode_frame(bye)))
        self._out.append(CloseClient(number))

    def _refuse(self, connection: Connection, bye: Bye) -> None:
        self.counters["refused"] += 1
        self.counters["slow_disconnected"] += bye.code == "slow"
        self._forget(connection)
        self._end(connection.number, bye)

    def _forget(self, connection: Connection) -> None:
        """The connection is no more; neither is its session."""
        self._connections.pop(connection.number, None)
        self._waiting.pop(connection.number, None)
        self._behind.pop(connection.number, None)
        self._spent.pop(connection.number, None)
        self.counters["connections"] = len(self._connections)
        session, connection.session = connection.session, None
        if session is None:
            return
        number = session.key & SESSION_MASK
        if session.durable is None:
            self._sessions.pop(number, None)
        self._touched.pop(number, None)
        if self._by_client_id.get(session.client_id) is session:
            del self._by_client_id[session.client_id]
        self._count_sessions()
        self._publishers -= session.next_sequence is not None
        self._pool_bytes -= session.flight_bytes
        self._release(session, everything=True)
        for initial in session.serving.values():
            self._validity.forget(number, initial)
        if session.durable is not None:
            self._detach(session, session.durable)
        else:
            self._close_subscriptions(session)
        self._out.append(Send(COORDINATOR_PEER, SessionClosed(session.client_id, session.key)))
        self._emptied()

    def _client_bytes(self, event: ClientBytes) -> None:
        connection = self._connections.get(event.connection)
        if connection is None:
            return  # already told to close
        connection.heard_ms = self._now_ms
        connection.now_us = event.now_us
        try:
            bodies = connection.reader.feed(event.data)
        except FrameTooLargeError as error:
            self._refuse(connection, Bye("too_large", str(error)))
            return
        if bodies or not connection.reader.pending:
            connection.partial_ms = None
        if connection.reader.pending and connection.partial_ms is None:
            connection.partial_ms = self._now_ms
        connection.bodies.extend(bodies)
        connection.allowance -= len(bodies) // FRAMES_PER_US
        if bodies and connection.number not in self._behind:
            self._work(connection)

    def _work(self, connection: Connection) -> None:
        """Handle the frames that wait, as far as the client's allowance goes."""
        bodies = connection.bodies
        number = connection.number
        try:
            while bodies and self._may_go_on(connection):
                frame = decode_client_frame(bodies[0])
                if self._must_wait(frame):
                    connection.waits = True
                    break
                bodies.popleft()
                connection.allowance -= FRAME_US
                self._frame(connection, frame, connection.now_us)
                if number not in self._connections:
                    return
        except CodecError as error:
            self._refuse(connection, Bye("malformed", str(error)))
            return
        except Refusal as refusal:
            self._refuse(connection, refusal.bye)
            return
        self._spent[number] = connection
        if bodies:
            self._behind[number] = connection
            self._pause(connection)
            return
        self._behind.pop(number, None)
        if connection.ended:
            self._forget(connection)
        elif connection.full_ms is None:
            self._resume(connection)

    def _may_go_on(self, connection: Connection) -> bool:
        return (
            connection.allowance > 0
            and connection.full_ms is None
            and not connection.waits
            and connection.asked is None
        )

    def _next_turns(self) -> None:
        """Begin a round: give out allowances, and go on with those who are behind."""
        turn = min(TURN_US, max(TURN_US_MIN, ROUND_US // max(len(self._behind), 1)))
        spent, self._spent = self._spent, {}
        for number, connection in spent.items():
            connection.allowance = min(connection.allowance + turn, turn)
            if connection.allowance < TURN_US:
                self._spent[number] = connection
        if not self._behind:
            return
        may_go_on = not self._recovering and not self._changes_full() and not self._validity.full
        for number, connection in list(self._behind.items()):
            connection.waits = connection.waits and not may_go_on
            if number in self._behind:
                # Whoever is stopped by what those before it did comes before them the next time.
                if connection.allowance > 0 and not connection.waits:
                    del self._behind[number]
                self._work(connection)
        if any(
            connection.full_ms is None and not connection.waits and connection.asked is None
            for connection in self._behind.values()
        ):
            self._out.append(Again())

    def _must_wait(self, frame: frames.ClientFrame) -> bool:
        if isinstance(frame, frames.Subscribe | frames.Unsubscribe):
            return self._recovering or self._changes_full()
        if isinstance(frame, frames.Unpublish):
            return self._recovering or self._validity.full
        return self._recovering and isinstance(frame, frames.Publish)

    def _changes_full(self) -> bool:
        return len(self._changes) >= CHANGES_UNDERWAY or self._change_bytes >= CHANGE_BYTES_UNDERWAY

    def _frame(self, connection: Connection, frame: frames.ClientFrame, now_us: int) -> None:
        session = connection.session
        if session is None:
            if not isinstance(frame, frames.Hello):
                raise Refusal("malformed", f"{type(frame).__name__} before Hello")
            self._hello(connection, frame)
            return
        match frame:
            case frames.Publish():
                connection.allowance -= PUBLISH_US
                if frame.valid_for_ms:
                    connection.allowance -= KEEP_US * len(frame.lengths) // 4
                self._publish(session, frame, now_us)
            case frames.Consumed(count) if session.durable is not None:
                if not session.durable.consume(count):
                    raise Refusal("malformed", f"position {count} reported as consumed, which was never sent")
                session.stalled_ms = None
                self._touched[session.key & SESSION_MASK] = session
            case frames.Settle():
                self._settled(session, frame)
            case frames.Consumed(count):
                before = session.outbox.consumed
                if not session.outbox.consume(count):
                    raise Refusal(
                        "malformed", f"{count} notifications reported as consumed, {session.outbox.sent} were sent"
                    )
                if count > before:
                    session.stalled_ms = None
                self._touched[session.key & SESSION_MASK] = session
            case frames.Subscribe():
                connection.allowance -= self._subscribe(session, frame)
            case frames.Unsubscribe():
                connection.allowance -= CHANGE_US
                self._unsubscribe(session, frame)
            case frames.Unpublish(request, instance, sequence):
                connection.allowance -= CHANGE_US
                self._validity.unpublish(connection.number, request, session.client_id, instance, sequence)
            case frames.Pong():
                pass
            case frames.Goodbye(end_session):
                self._forget(connection)
                if end_session and session.durable is not None:
                    self._end_durable(session, session.durable)
                self._out.append(CloseClient(connection.number))
            case frames.Moved():
                session.moved = True
                self._emptied()
            case frames.Hello():
                raise Refusal("malformed", "a second Hello")

    def _hello(self, connection: Connection, hello: frames.Hello) -> None:
        assert self._view is not None, "clients are let in before a view"
        if hello.version != frames.VERSION:
            raise Refusal("version", f"protocol version {hello.version}, this cluster speaks {frames.VERSION}")
        if not 1 <= len(hello.client_id.encode()) <= 128 or not hello.client_id.isprintable():
            raise Refusal("client_id", "a client id has 1 to 128 bytes, all printable")
        if not 0 <= hello.instance < 1 << 64:
            raise Refusal("malformed", "an instance is 0 <= instance < 2**64")
        if hello.receive_window < 1:
            raise Refusal("malformed", f"a receive window of {hello.receive_window}")
        if self._moving is not None:
            raise Refusal("shutdown", "this connection point is about to leave")
        if hello.durable:
            if not 0 <= hello.expires_s <= self._durable.expires_s_max:
                limit = self._durable.expires_s_max
                raise Refusal("durable", f"expires is {hello.expires_s} s, the limit is {limit} s")
            if hello.max_deliver < 0:
                raise Refusal("durable", f"max_deliver is {hello.max_deliver}")
            if self._homes.find(hello.client_id) is None:
                # It may live elsewhere.
                connection.asked = hello
                self._ask(connection.number, hello)
                return
        self._open(connection, hello)

    def _open(self, connection: Connection, hello: frames.Hello) -> None:
        """Log the client in."""
        assert self._view is not None, "clients are let in before a view"
        if hello.durable and self._homes.find(hello.client_id) is None and self._homes.full:
            raise Refusal("durable", f"{self._durable.sessions} durable sessions live here")
        older = self._by_client_id.get(hello.client_id)
        if older is not None:
            self._take_over(older, same_instance=older.instance == hello.instance)
        window = min(hello.receive_window, self._flow.receive_window)
        session = self._attach(hello, window) if hello.durable else self._new_session(hello, window)
        session.connection = connection.number
        session.instance = hello.instance
        connection.session = session
        connection.reader.limit = self._limits.frame_bytes
        del self._waiting[connection.number]
        self._by_client_id[hello.client_id] = session
        self._count_sessions()
        if session.durable is None:
            self._welcome(session, False, [])
        self._out.append(Send(COORDINATOR_PEER, SessionOpened(hello.client_id, session.key, hello.instance)))

    def _number(self) -> int:
        """Return a number that no session has, nor an earlier incarnation's."""
        while True:
            number = self._next_session
            self._next_session = self._next_session + 1 & SESSION_MASK
            if number not in self._sessions and number not in self._publishing:
                return number

    def _new_session(self, hello: frames.Hello, window: int) -> Session:
        assert self._view is not None, "a session before a view"
        number = self._number()
        key = client_key(self._slot, number)
        session = self._sessions[number] = Session(
            None,
            hello.client_id,
            key,
            hello.instance,
            Peer(ACCESS_POINT, access_point_of(self._view, key)),
            self._outbox(window),
            publisher=key,
        )
        session.outbox.on_drop = self._recent.watcher(key)
        return session

    def _outbox(self, window: int) -> Outbox:
        return Outbox(
            window=window,
            flight_bytes=self._flow.flight_bytes,
            queue_messages=self._flow.queue_messages,
            queue_bytes=self._flow.queue_bytes,
            frame_bytes=self._limits.frame_bytes,
        )

    def _count_sessions(self) -> None:
        self.counters["sessions"] = len(self._by_client_id)

    def _welcome(self, session: Session, resumed: bool, listed: list[tuple[int, str, str]]) -> None:
        """Answer Hello. listed: what a session that is resumed holds."""
        window, window_bytes = self._window()
        self._write(
            session,
            frames.Welcome(
                frames.VERSION,
                session.key & SESSION_MASK,
                self._timing.client_heartbeat_ms,
                window,
                window_bytes,
                self._limits.frame_bytes,
                self._limits.attributes,
                self._limits.string_bytes,
                self._limits.subscriptions,
                resumed,
                columns.pack(columns.UINT32, sorted(session.subscriptions)) if resumed else b"",
                len(listed),
            ),
        )
        for held in _portions(listed, self._limits.frame_bytes):
            self._write(session, held)

    def _report_sessions(self) -> None:
        """The coordinator may be a new one, which knows of none."""
        asked = [one for one in self._connections.values() if one.asked is not None]
        self._out.append(Send(COORDINATOR_PEER, DurableHomes(self._homes.client_ids, list(self._asking))))
        for connection in asked:
            assert connection.asked is not None, "just looked"
            self._ask(connection.number, connection.asked)
        for session in self._by_client_id.values():
            opened = SessionOpened(session.client_id, session.key, session.instance)
            self._out.append(Send(COORDINATOR_PEER, opened))

    def _take_over(self, older: Session, *, same_instance: bool) -> None:
        assert older.connection is not None, f"{older.client_id} is not connected"
        connection = self._connections[older.connection]
        code = "moved" if same_instance else "taken_over"
        self._refuse(connection, Bye(code, f"client id {older.client_id!r} has connected again"))

    def _write(self, session: Session, frame: frames.Frame) -> None:
        if session.connection is None:
            return
        if session.greeting is not None and isinstance(frame, frames.Ping | frames.Move):
            return  # Welcome comes first; these are said again, or not needed
        self._out.append(SendClient(session.connection, encode_frame(frame)))

    # Publications ------------------------------------------------------------------------------------------------

    def _window(self) -> tuple[int, int]:
        """Return a publisher's credit: its own window, less when the pool must serve many."""
        share = self._flow.publish_pool_bytes // max(self._publishers, 1)
        window_bytes = min(self._flow.publish_window_bytes, max(share, self._flow.publish_floor_bytes))
        return self._flow.publish_window, window_bytes

    def _publish(self, session: Session, frame: frames.Publish, now_us: int) -> None:
        count = len(frame.lengths) // 4
        size = len(frame.payload)
        if len(frame.lengths) % 4 or count == 0:
            raise Refusal("malformed", "Publish.lengths is not a column of uint32, or empty")
        if count > self._limits.publications_per_frame:
            raise Refusal(
                "too_large", f"{count} publications in a frame, the limit is {self._limits.publications_per_frame}"
            )
        if sum(columns.unpack(columns.UINT32, frame.lengths)) != size:
            raise Refusal("malformed", "Publish.lengths and Publish.payload do not fit")
        if frame.acknowledge not in (frames.ACKNOWLEDGE_NONE, frames.ACKNOWLEDGE_MATCHED):
            raise Refusal("malformed", f"acknowledge level {frame.acknowledge}")
        if not 0 <= frame.valid_for_ms <= UNTIL_UNPUBLISHED:
            raise Refusal("malformed", f"publications valid for {frame.valid_for_ms} ms")
        if session.next_sequence is None:
            if not 1 <= frame.first_sequence < 1 << 62:
                raise Refusal("malformed", f"a first sequence of {frame.first_sequence}")
            session.next_sequence = frame.first_sequence
            session.acknowledged = frame.first_sequence - 1
            self._publishers += 1
        if frame.first_sequence != session.next_sequence:
            raise Refusal("malformed", f"sequence {frame.first_sequence} where {session.next_sequence} was due")
        last = frame.first_sequence + count - 1
        # The byte window may have shrunk after the client used it; the configured one is the contract.
        if last - session.acknowledged > self._flow.publish_window or (
            session.unacknowledged and session.flight_bytes + size > self._flow.publish_window_bytes
        ):
            raise Refusal(
                "over_credit",
                f"more than {self._flow.publish_window} publications or "
                f"{self._flow.publish_window_bytes} bytes are unacknowledged",
            )
        session.next_sequence = last + 1
        run = Run(session.client_id, session.instance, session.publisher, frame.first_sequence, count, now_us)
        session.unacknowledged.append((run, frame.lengths, frame.payload))
        self._recent.taken(session.client_id, frame.first_sequence, last, now_us)
        session.flight_bytes += size
        self._pool_bytes += size
        self.counters["accepted"] += count
        if frame.valid_for_ms:
            session.kept_any = True
            payloads = columns.cut(frame.payload, columns.unpack(columns.UINT32, frame.lengths))
            session.not_kept += self._validity.keep(
                session.client_id, session.instance, frame.first_sequence, now_us, payloads, frame.valid_for_ms
            )
        self._gathered.setdefault(session.access_point, []).append(session.unacknowledged[-1])

    def _send_gathered(self, access_point: Peer) -> None:
        gathered = self._gathered.pop(access_point, None)
        if gathered is None:
            return
        if len(gathered) == 1:
            run, lengths, payload = gathered[0]
            message = Publications([run], lengths, payload)
        else:
            message = Publications(
                [run for run, _, _ in gathered],
                b"".join([lengths for _, lengths, _ in gathered]),
                b"".join([payload for _, _, payload in gathered]),
            )
        self._out.append(Send(access_point, message))

    def _acknowledge(self, message: Acknowledge) -> None:
        for client, upto, rejected in message.acknowledgements:
            number = client & SESSION_MASK
            session = self._sessions.get(number) or self._publishing.get(number)
            if session is None or session.publisher != client:
                continue  # gone meanwhile
            assert session.next_sequence is not None, f"{session.client_id}: acknowledged, never published"
            assert upto < session.next_sequence, f"{session.client_id}: acknowledged {upto}"
            if upto <= session.acknowledged:
                continue  # again, or late, after a recovery
            self.counters["acknowledged"] += upto - session.acknowledged
            self.counters["rejected"] += len(rejected)
            self._recent.rejected(session.client_id, rejected)
            not_kept: list[tuple[int, str]] = []
            if session.kept_any:
                self._validity.store.settle(session.client_id, session.instance, session.acknowledged + 1, upto)
                for sequence, _ in rejected:
                    self._validity.store.remove((session.client_id, session.instance, sequence))
                not_kept = [one for one in session.not_kept if one[0] <= upto]
                del session.not_kept[: len(not_kept)]
            session.acknowledged = upto
            while session.unacknowledged and session.unacknowledged[0][0].last_sequence <= upto:
                size = len(session.unacknowledged.popleft()[2])
                session.flight_bytes -= size
                self._pool_bytes -= size
            self._write(session, frames.Acknowledged(upto, *self._window(), rejected, not_kept))

    # Subscriptions -----------------------------------------------------------------------------------------------

    def _change(
        self, session: int, request: int | None, closed: int | None, subscription: int, normal_form: bytes | None
    ) -> SubscriptionChange:
        self._next_change += 1
        change = SubscriptionChange(self._next_change, subscription, normal_form)
        size = len(normal_form or b"")
        self._changes[self._next_change] = Change(session, request, closed, size, change)
        self._change_bytes += size
        owner = self._sessions.get(session)
        if owner is not None and owner.durable is not None:
            owner.unanswered += 1
        return change

    def _close_subscriptions(self, session: Session) -> None:
        """The session is no more: the matchers are to forget what it holds, and nobody waits for their answer."""
        changes = [
            self._change(session.key & SESSION_MASK, None, None, subscription_id(session.key, number), None)
            for number in sorted(session.subscriptions)
        ]
        if changes:
            self._send_changes(session.access_point, changes)

    def _send_changes(self, access_point: Peer, changes: list[SubscriptionChange]) -> None:
        if self._recovering:
            self._unsent.append((access_point, changes))
            return
        self._send_gathered(access_point)
        self._out.append(Send(access_point, ChangeSubscriptions(changes)))

    def _subscribe(self, session: Session, frame: frames.Subscribe) -> int:
        """Check the request and pass it on; return what it cost, in microseconds."""
        cost = CHANGE_US + len(frame.filter) // 2
        if not 0 <= frame.number < 1 << SUBSCRIPTION_BITS:
            raise Refusal("malformed", f"subscription number {frame.number}, allowed is below {1 << SUBSCRIPTION_BITS}")
        new = frame.number not in session.subscriptions
        if new and len(session.subscriptions) >= self._limits.subscriptions:
            limit = self._limits.subscriptions
            self._write(
                session, frames.Refused(frame.request, "too_many", f"{limit} subscriptions are open", None, limit)
            )
            return cost
        valid = frame.initial == INITIAL_VALID
        if frame.initial not in (INITIAL_NONE, INITIAL_VALID) or (valid and (not new or session.durable is not None)):
            reason = f"initial {frame.initial[:32]!r}, known are {INITIAL_NONE}, {INITIAL_VALID}"
            if session.durable is not None:
                reason = f"a durable session has no subscriptions with initial {INITIAL_VALID}"
            elif not new:
                reason = f"subscription {frame.number} is open, a new one alone has initial {INITIAL_VALID}"
            self._write(session, frames.Refused(frame.request, "initial", reason, None, None))
            return cost
        try:
            policy = policy_of(frame.policy, self._filters)
            normal_form = encode_normal(_parse(frame.filter, self._filters).normal_form)
        except PolicyError as error:
            self._write(session, frames.Refused(frame.request, error.code, error.reason, error.position, error.limit))
            return cost
        except FilterError as error:
            self._write(session, frames.Refused(frame.request, error.code, error.reason, error.position, error.limit))
            return cost if error.limit is None else OVER_LIMIT_US
        if session.durable is not None:
            if frame.policy not in DURABLE_POLICIES:
                reason = f"policy {frame.policy[:32]!r}, a durable session knows {', '.join(DURABLE_POLICIES)}"
                self._write(session, frames.Refused(frame.request, "policy", reason, None, None))
                return cost
            session.durable.hold(frame.number, Held(frame.filter, frame.policy, normal_form))
        assert session.connection is not None, "nobody asks"
        session.asked[frame.number] = (frame.policy, self._connections[session.connection].now_us)
        session.live = columns.mask_with(session.live, frame.number)
        session.live[frame.number] = True
        session.outbox.set_policy(frame.number, policy)
        if valid:
            session.serving[frame.number] = session.initials[frame.number] = Initial(frame.number, normal_form)
        self._send_change(session, frame.request, frame.number, normal_form)
        return cost + len(normal_form) // 10

    def _unsubscribe(self, session: Session, frame: frames.Unsubscribe) -> None:
        if frame.number not in session.subscriptions:
            self._write(session, frames.Done(frame.request))
            return
        del session.subscriptions[frame.number]
        session.asked.pop(frame.number, None)
        initial = session.serving.pop(frame.number, None)
        if initial is not None:
            self._validity.forget(session.key & SESSION_MASK, initial)
            self._touched[session.key & SESSION_MASK] = session
        if session.durable is not None:
            session.durable.close(frame.number)
        self._send_change(session, frame.request, frame.number, None)

    def _send_change(self, session: Session, request: int, number: int, normal_form: bytes | None) -> None:
        closed = number if normal_form is None else None
        subscription = subscription_id(session.key, number)
        change = self._change(session.key & SESSION_MASK, request, closed, subscription, normal_form)
        if normal_form is not None:
            session.subscriptions[number] = change
        if session.durable is not None:
            asked = self._changes[change.change]
            asked.connection, asked.portion = session.connection, self._journal.present
        self._send_changes(session.access_point, [change])

    def _changed(self, message: Changed) -> None:
        for number in message.changes:
            if self._rebuilding is not None:
                self._rebuilding.answered(number)
            change = self._changes.pop(number, None)
            if change is None:
                continue  # answered before, and sent again in a recovery
            self._change_bytes -= change.size
            session = self._sessions.get(change.session)
            if session is not None and session.durable is not None:
                session.unanswered -= 1
                self._greet(session)
            if session is None or change.request is None:
                continue
            closed = change.closed
            if closed is not None and closed not in session.subscriptions:
                session.live[closed] = False
                session.initials.pop(closed, None)  # not before: until here what was given may still come live
                session.closed_any = session.closed_now = True
                self._touched[change.session] = session
            if session.durable is None:
                self._write(session, frames.Done(change.request))
            elif change.connection == session.connection:
                self._journal.when(change.portion, partial(self._done, session, change.connection, change.request))
            initial = session.serving.get(change.message.subscription & SUBSCRIPTION_MASK)
            if initial is not None and not initial.asking:
                self._validity.ask(change.session, initial)
        self._see_rebuilt()
        self._emptied()

    # Valid publications --------------------------------------------------------------------------------------------

    def _relay(self, message: Message) -> None:
        assert self._view is not None, "something to relay before a view"
        self._out.append(Send(Peer(ACCESS_POINT, access_point_of(self._view, self._slot)), message))

    def _look_about(self) -> None:
        """See which connection points there are, those of the next view included."""
        slots: set[int] = set()
        for view in (self._view, self._next):
            if view is not None:
                slots.update(view.connection_points)
        self._validity.view(slots)
        self._emptied()

    def _give_valid(self, number: int, session: Session) -> None:
        """Write what is valid, as the client has credit, and see to it that more comes."""
        asking = (initial for initial in session.serving.values() if initial.asking)
        for initial in list(islice(asking, SERVED_AT_ONCE)):
            while room := session.outbox.room:
                given, passed = initial.take(min(room, PIECE), self._limits.frame_bytes // 2)
                for one in (*given, *passed):
                    if one.settled:
                        # So is all before it: what comes again of it has been sent again.
                        self._watermarks.raise_to((one.publisher, one.instance), one.sequence)
                over = initial.over
                if given or over:
                    self._write(session, frame_of(initial.number, given, last=over))
                    self.counters["valid_given"] += len(given)
                if given:
                    session.outbox.send_past(len(given), sum(len(one.payload) + 28 for one in given))
                if over:
                    self._validity.forget(number, initial)
                    del session.serving[initial.number]
                    if not initial.prune(self._watermarks.upto):
                        del session.initials[initial.number]
                if over or not given:
                    break
            else:
                return  # it has no credit left
            if not initial.over:
                self._validity.ask_more(number, initial)

    def _forget_given(self) -> None:
        """Let go of what can't come live any more."""
        for session in self._sessions.values():
            for number, initial in list(session.initials.items()):
                if number not in session.serving and not initial.prune(self._watermarks.upto):
                    del session.initials[number]

    # Notifications -----------------------------------------------------------------------------------------------

    def _deliver(self, exit_point: int, message: Deliver) -> None:
        """Give each session its share; the tokens of runs for which there is no room are held.

        Plain Python on purpose: most shares are small, and vector work costs a microsecond a call.
        """
        run_of = columns.unpack(columns.UINT32, message.run)
        sequence_of = columns.unpack(columns.UINT64, message.sequence)
        lengths = columns.unpack(columns.UINT32, message.lengths)
        publication = columns.unpack(columns.UINT32, message.publication)
        matches = columns.unpack(columns.UINT32, message.matches)
        payloads = columns.cut(message.payload, lengths)
        names = [(publisher, instance, time_us) for publisher, instance, time_us, _ in message.runs]
        doubles = self._watermarks.take([message.runs[run] for run in run_of], sequence_of)
        self.counters["duplicates"] += len(doubles)
        held: set[int] = set()
        begin = first = 0
        for number, count in zip(
            columns.unpack(columns.UINT32, message.sessions),
            columns.unpack(columns.UINT32, message.notifications),
            strict=True,
        ):
            end = begin + count
            last = first + 4 * sum(matches[begin:end])
            session = self._sessions.get(number)
            if session is not None:
                chosen = publication[begin:end]
                runs = [run_of[place] for place in chosen]
                used = [0]
                if len(names) > 1:
                    # A share names its own runs alone, counted from 0; they come in order.
                    used = sorted(set(runs))
                    own = {run: place for place, run in enumerate(used)}
                    runs = [own[run] for run in runs]
                chunk = Chunk(
                    [names[run] for run in used],
                    columns.pack(columns.UINT32, runs),
                    columns.pack(columns.UINT64, [sequence_of[place] for place in chosen]),
                    columns.pack(columns.UINT32, [lengths[place] for place in chosen]),
                    message.matches[4 * begin : 4 * end],
                    message.numbers[first:last],
                    b"".join([payloads[place] for place in chosen]),
                )
                if session.durable is not None:
                    # Those of the doubles too: their first copies may not be on disk.
                    self._hold_until_stored(exit_point, message.runs, used, held)
                if doubles:
                    chunk = self._without(doubles, exit_point, session, chunk, chosen, message.runs, run_of, held)
                if session.closed_any:
                    chunk = chunk.only(session.live)
                if session.initials and len(chunk):
                    chunk = admitted(chunk, session.initials)
                if len(chunk):
                    self._queue(exit_point, session, chunk, message.runs, used, held)
            begin, first = end, last
        tokens = [run[3] for place, run in enumerate(message.runs) if place not in held]
        if tokens:
            self._delivered.setdefault(exit_point, []).extend(tokens)

    def _queue(
        self,
        exit_point: int,
        session: Session,
        chunk: Chunk,
        runs: list[tuple[str, int, int, int]],
        used: list[int],
        held: set[int],
    ) -> None:
        if session.durable is not None:
            position = session.durable.push(chunk)
            if not session.durable.admits(position):
                self._hold(exit_point, session, position, runs, used, held)
            self._note_taken(chunk)
            return
        position = session.outbox.push(chunk)
        self._touched[session.key & SESSION_MASK] = session
        if not session.outbox.admits(position):
            self._hold(exit_point, session, position, runs, used, held)

    def _hold(
        self,
        exit_point: int,
        session: Session,
        position: Position,
        runs: list[tuple[str, int, int, int]],
        used: list[int],
        held: set[int],
    ) -> None:
        """These runs are delivered when the session's outbox admits the position."""
        session.holds.append((position, self._hold_tokens(exit_point, runs, used, held)))

    def _hold_tokens(
        self, exit_point: int, runs: list[tuple[str, int, int, int]], used: list[int], held: set[int]
    ) -> list[tuple[int, int]]:
        """Hold these runs once more; return what `_let_go` is to be given for it."""
        tokens = [(exit_point, runs[place][3]) for place in used]
        for token in tokens:
            self._held[token] = self._held.get(token, 0) + 1
        held.update(used)
        return tokens

    def _without(
        self,
        doubles: set[int],
        exit_point: int,
        session: Session,
        chunk: Chunk,
        chosen: list[int],
        runs: list[tuple[str, int, int, int]],
        run_of: list[int],
        held: set[int],
    ) -> Chunk:
        """Return the share without doubles. Their first copies may still wait for a place: so do their runs."""
        double = {run_of[place] for place in chosen if place in doubles}
        if not double:
            return chunk
        position = session.outbox.end if session.durable is None else session.durable.last
        if not session.admits(position):
            self._hold(exit_point, session, position, runs, sorted(double), held)
        return chunk.select(np.array([at for at, place in enumerate(chosen) if place not in doubles], np.int64))

    def _release(self, session: Session, *, everything: bool = False) -> None:
        """Let go of the runs that have found their place in the session's queue."""
        while session.holds and (everything or session.admits(session.holds[0][0])):
            self._let_go(session.holds.popleft()[1])
        if not session.holds:
            session.stalled_ms = None

    def _explained(self, question: Explain) -> Explained:
        session = self._sessions.get(question.client & SESSION_MASK)
        if session is not None and session.key != question.client:
            session = None
        number = None if session is None else session.connection
        connection = None if number is None else self._connections.get(number)
        publisher = self._by_client_id.get(question.publisher)
        return explained(question, self._recent, session, connection, publisher, self._changes.__contains__)

    def _let_go(self, tokens: list[tuple[int, int]]) -> None:
        for token in tokens:
            left = self._held[token] - 1
            if left:
                self._held[token] = left
            else:
                del self._held[token]
                self._delivered.setdefault(token[0], []).append(token[1])

    # Durable sessions --------------------------------------------------------------------------------------------

    def _restore(self, recovered: Recovered) -> None:
        """Take up what an earlier incarnation of this slot has left on disk."""
        for publisher, instance, sequence in recovered.took:
            self._watermarks.raise_to((publisher, instance), sequence)
        for durable in self._homes.restore(recovered):
            key = client_key(self._slot, durable.number)
            session = Session(
                None, durable.client_id, key, durable.instance, Peer(ACCESS_POINT, 0), self._outbox(1), durable=durable
            )
            for number, held in durable.subscriptions.items():
                self._next_change += 1
                change = SubscriptionChange(self._next_change, subscription_id(key, number), held.normal_form)
                session.subscriptions[number] = change
            # What a subscription matched that was closed before may still come, of whatever number.
            session.live = columns.mask_with(session.live, SUBSCRIPTION_MASK)
            session.live[list(session.subscriptions)] = True
            session.closed_any = True
            self._sessions[durable.number] = session
            self._unregistered.append(session)

    def _register(self) -> None:
        """Clients are let in: the matchers are to know what was restored, unless a recovery has told them."""
        unregistered, self._unregistered = self._unregistered, []
        for session in unregistered:
            for held in list(session.subscriptions.values()):
                number = held.subscription & SUBSCRIPTION_MASK
                change = self._change(session.key & SESSION_MASK, None, None, held.subscription, held.normal_form)
                session.subscriptions[number] = change
                self._send_changes(session.access_point, [change])

    def _ask(self, connection: int, hello: frames.Hello) -> None:
        self._asking[hello.client_id] += 1
        self._out.append(Send(COORDINATOR_PEER, FindHome(hello.client_id, connection)))

    def _home_found(self, message: HomeFound) -> None:
        client_id, home, address = message.client_id, message.home, message.address
        connection = self._connections.get(message.connection)
        hello = None if connection is None else connection.asked
        self._asking -= Counter({client_id: 1})
        if connection is None or hello is None or hello.client_id != client_id:
            if home == self._slot:
                self._not_begun(client_id)
            return
        connection.asked = None
        if home != self._slot:
            if address:
                bye = Bye("redirect", f"the durable session lives at {Peer(CONNECTION_POINT, home)}", address)
            elif home < 0:
                bye = Bye("unavailable", "where the durable session lives is not known yet")
            else:
                bye = Bye("unavailable", f"the durable session lives at {Peer(CONNECTION_POINT, home)}, which is away")
            self._refuse(connection, bye)
            return
        try:
            if self._moving is not None:
                raise Refusal("shutdown", "this connection point is about to leave")
            self._open(connection, hello)
        except Refusal as refusal:
            self._not_begun(client_id)
            self._refuse(connection, refusal.bye)
            return
        if connection.bodies:
            self._work(connection)

    def _not_begun(self, client_id: str) -> None:
        """A session was to live here, and its client is gone; unless another connection of it waits for the word."""
        if self._homes.find(client_id) is None and client_id not in self._asking:
            self._out.append(Send(COORDINATOR_PEER, DurableEnded(client_id)))

    def _attach(self, hello: frames.Hello, window: int) -> Session:
        """Begin a durable session, or go on with it; Welcome goes out when that is on disk."""
        durable = self._homes.find(hello.client_id)
        resumed = durable is not None
        listed: list[tuple[int, str, str]] = []
        if durable is None:
            session = self._new_session(hello, 1)
            durable = session.durable = self._homes.open(session.key & SESSION_MASK, hello.client_id)
        else:
            session = self._sessions[durable.number]
            if hello.session != durable.number:
                listed = [(number, held.filter, held.policy) for number, held in sorted(durable.subscriptions.items())]
        number = self._number()
        session.publisher = client_key(self._slot, number)
        self._publishing[number] = session
        durable.attach(window, hello.instance, expires_s=hello.expires_s, max_deliver=hello.max_deliver)
        session.greeting = (resumed, listed)
        self._journal.then(partial(self._greet, session))
        return session

    def _greet(self, session: Session) -> None:
        """Say Welcome to a durable session's client, once that can be said."""
        durable, greeting = session.durable, session.greeting
        if greeting is not None and durable is not None and durable.is_open and not session.unanswered:
            session.greeting = None
            self._welcome(session, *greeting)
            self._touched[durable.number] = session

    def _detach(self, session: Session, durable: DurableSession) -> None:
        """The connection is gone; the session stays."""
        session.connection = None
        session.greeting = None
        del self._publishing[session.publisher & SESSION_MASK]
        session.next_sequence = None
        session.unacknowledged.clear()
        session.flight_bytes = 0
        durable.detach(self._now_ms)
        self._touched[durable.number] = session

    def _end_durable(self, session: Session, durable: DurableSession) -> None:
        """Its client wants it no more, or it has expired."""
        del self._sessions[durable.number]
        self._touched.pop(durable.number, None)
        self._homes.end(durable)
        self._close_subscriptions(session)
        self._out.append(Send(COORDINATOR_PEER, DurableEnded(session.client_id)))
        self._emptied()

    def _settled(self, session: Session, frame: frames.Settle) -> None:
        durable = session.durable
        if durable is None:
            raise Refusal("malformed", "Settle in a session that is not durable")
        if len(frame.acknowledged) % 8 or len(frame.refused) % 8:
            raise Refusal("malformed", "the columns of Settle are not of uint64")
        acknowledged = columns.unpack(columns.UINT64, frame.acknowledged)
        if not durable.acknowledge(acknowledged) or not durable.refuse(columns.unpack(columns.UINT64, frame.refused)):
            raise Refusal("malformed", "Settle names a position that was never sent")
        session.stalled_ms = None
        self._touched[durable.number] = session

    def _done(self, session: Session, connection: int | None, request: int) -> None:
        if connection == session.connection:
            self._write(session, frames.Done(request))

    def _hold_until_stored(
        self, exit_point: int, runs: list[tuple[str, int, int, int]], used: list[int], held: set[int]
    ) -> None:
        """These runs are delivered when the journal's present portion is on disk, at the earliest."""
        tokens = self._hold_tokens(exit_point, runs, used, held)
        self._journal.then(partial(self._stored_runs, self._recoveries, tokens))

    def _stored_runs(self, recoveries: int, tokens: list[tuple[int, int]]) -> None:
        if recoveries == self._recoveries:
            self._let_go(tokens)

    def _note_taken(self, chunk: Chunk) -> None:
        """What a later incarnation must know so as not to take it twice."""
        for publisher, instance, _ in chunk.runs:
            self._journal.write(Took(publisher, instance, self._watermarks.upto((publisher, instance))))

    def _flush_durable(self, session: Session, durable: DurableSession) -> None:
        if session.closed_now:
            session.closed_now = False
            durable.keep(session.live)
        connection = None if session.connection is None else self._connections[session.connection]
        if connection is not None and session.greeting is None and connection.full_ms is None:
            for portion in durable.take():
                self.counters["notifications"] += len(portion)
                self.counters["redelivered"] += sum(portion.again)
                self._write(session, portion.frame())
            for drops in durable.take_drops():
                self._write(session, drops)
        self.counters["dropped"] += durable.dropped
        self.counters["dropped_quota"] += durable.dropped
        self.counters["dead_letters"] += durable.dead
        durable.dropped = durable.dead = 0
        if session.holds:
            self._release(session)

    # Recovery ----------------------------------------------------------------------------------------------------

    def _recover(self, view: View) -> None:
        """What was sent to other layers and not answered is void."""
        self._view, self._next = view, None
        self._recovering = True
        self._recoveries += 1
        self._rebuilding = None
        self._flushed = set()
        self._gathered = {}
        self._held = {}
        self._delivered = {}
        self._validity.silence()
        self._look_about()
        self._rebind(view)
        for session in self._sessions.values():
            session.holds.clear()
            session.stalled_ms = None
        if self._slot not in view.connection_points:
            self._out.append(Flush())

    def _rebuild(self, message: Rebuild) -> None:
        """Send the subscriptions again that new matchers lack, and the changes that are not answered."""
        if self._view is None or self._view.epoch != message.epoch:
            return
        for slot in self._view.access_points:
            self._out.append(Send(Peer(ACCESS_POINT, slot), Renew(message.epoch)))
        matchers = {slot for layer, slot in message.replaced if layer == MATCHER}
        everything = (CONNECTION_POINT, self._slot) in message.replaced
        if everything:
            self._unregistered = []
        self._unsent = []
        self._rebuilding = Rebuilding(self._to_rebuild(self._view, matchers, everything, list(self._changes.values())))
        self._send_again()

    def _to_rebuild(
        self, view: View, matchers: set[int], everything: bool, changes: list[Change]
    ) -> Iterator[tuple[Peer, SubscriptionChange]]:
        """Yield what is to be sent again, each with the access point that it goes by."""
        for change in changes:
            if change.message.change in self._changes and not self._superseded(change):
                yield Peer(ACCESS_POINT, access_point_of(view, client_key(self._slot, change.session))), change.message
        if not matchers and not everything:
            return
        for session in list(self._sessions.values()):
            for held in list(session.subscriptions.values()):
                if everything or view.owner(held.subscription) in matchers:
                    yield session.access_point, held

    def _superseded(self, change: Change) -> bool:
        """Tell whether there is a newer change of the same subscription: nobody may apply this one any more."""
        session = self._sessions.get(change.session)
        number = change.message.subscription & SUBSCRIPTION_MASK
        held = None if session is None else session.subscriptions.get(number)
        if change.message.normal_form is None:
            return held is not None
        return held is not change.message

    def _send_again(self) -> None:
        """Go on with the rebuilding, as far as answers are not too many behind."""
        if self._rebuilding is None:
            return
        for access_point, changes in self._rebuilding.step().items():
            self._out.append(Send(access_point, ChangeSubscriptions(changes)))
        if self._rebuilding.more:
            self._out.append(Again())
        self._see_rebuilt()

    def _see_rebuilt(self) -> None:
        if self._rebuilding is not None and self._rebuilding.done:
            assert self._view is not None, "rebuilt without a view"
            self._rebuilding = None
            self._out.append(Send(COORDINATOR_PEER, Rebuilt(self._view.epoch)))

    def _go_on(self, epoch: int) -> None:
        """Send again what is not acknowledged; from here everything goes its way."""
        if self._view is None or self._view.epoch != epoch or not self._recovering:
            return
        self._recovering = False
        self._changed(Changed([number for number, change in self._changes.items() if self._superseded(change)]))
        unsent, self._unsent = self._unsent, []
        for access_point, changes in unsent:
            self._send_changes(access_point, changes)
        counts: dict[Peer, int] = {}
        for session in self._sessions.values():
            access_point = session.access_point
            for taken in session.unacknowledged:
                self._gathered.setdefault(access_point, []).append(taken)
                counts[access_point] = counts.get(access_point, 0) + taken[0].count
                self.counters["sent_again"] += taken[0].count
                if counts[access_point] >= self._flow.batch_publications:
                    counts[access_point] = 0
                    self._send_gathered(access_point)
        self._validity.go_on()
        self._emptied()

    # Rounds ------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._send_again()
        if self._spent or self._behind:
            self._next_turns()
        for access_point in list(self._gathered):
            self._send_gathered(access_point)
        self._find_valid()
        touched, self._touched = self._touched, {}
        for number, session in touched.items():
            if session.durable is not None:
                self._flush_durable(session, session.durable)
                continue
            assert session.connection is not None, f"{session.client_id} is not connected"
            if session.closed_now:
                # Once a round and not once a close: a client may close thousands.
                session.closed_now = False
                session.outbox.keep(session.live)
            readable = self._connections[session.connection].full_ms is None
            if session.serving and readable:
                self._give_valid(number, session)
            if readable and not session.serving:
                chunks = session.outbox.take()
                if chunks:
                    self._recent.sent(session.key, session.outbox.sent - sum(map(len, chunks)), chunks)
                for chunk in chunks:
                    self.counters["notifications"] += len(chunk)
                    self._write(session, chunk.frame())
            self._settle(session, tell=readable)
            if session.outbox.overflowed:
                self._refuse(self._connections[session.connection], self._overflow())
                continue
            if session.holds:
                self._release(session)
            if session.arrived and not session.outbox.queued and not session.holds and not session.serving:
                self._refuse(self._connections[session.connection], Bye("moved", "all that was underway has come"))
        portion = self._journal.take()
        if portion is not None:
            self._out.append(portion)
        for exit_point, tokens in self._delivered.items():
            self._out.append(Send(Peer(EXIT_POINT, exit_point), Delivered(tokens)))
        self._delivered = {}
        if self._validity.busy:
            self._out.append(Again())

    def _find_valid(self) -> None:
        """Go on with what is asked about valid publications."""
        self._validity.step()
        found, self._validity.found = self._validity.found, set()
        for number in sorted({number for number, _ in found}):
            session = self._sessions.get(number)
            if session is not None:
                self._touched[number] = session
        withdrawn, self._validity.withdrawn = self._validity.withdrawn, []
        for number, request in withdrawn:
            connection = self._connections.get(number)
            if connection is not None and connection.session is not None:
                self._write(connection.session, frames.Done(request))

    def _settle(self, session: Session, *, tell: bool) -> None:
        """Apply the policies to what did not fit in flight; count what was dropped, and tell the client if it reads."""
        for reason, count in session.outbox.settle().items():
            self.counters["dropped"] += count
            self.counters[DROPPED_FOR[reason]] += count
        if tell:
            for reason, drops in session.outbox.take_drops().items():
                counts = sorted(drops.counts.items())
                self._write(session, frames.Dropped(reason, drops.notifications, counts))

    def _overflow(self) -> Bye:
        limits = f"{self._flow.queue_messages} notifications or {self._flow.queue_bytes} bytes"
        return Bye("slow", f"policy disconnect: more than {limits} wait, the limit of a client's queue")

    def _tick(self, now_ms: int) -> None:
        pings = now_ms // self._timing.client_heartbeat_ms != self._now_ms // self._timing.client_heartbeat_ms
        if not self._now_ms:
            # The first one: whoever came before it did so at an unknown time, not at 0.
            for connection in self._connections.values():
                connection.since_ms = connection.heard_ms = now_ms
                connection.partial_ms = None if connection.partial_ms is None else now_ms
                connection.full_ms = None if connection.full_ms is None else now_ms
        if now_ms // FORGET_MS != self._now_ms // FORGET_MS:
            self._forget_given()
        self._now_ms = now_ms
        self._validity.tick(now_ms)
        limits = self._limits
        for connection in list(self._connections.values()):
            session = connection.session
            bye = None
            if connection.full_ms is not None:
                if now_ms - connection.full_ms > 3 * self._timing.client_heartbeat_ms:
                    bye = Bye("slow", f"nothing of what was written was read for {now_ms - connection.full_ms} ms")
            elif connection.paused or connection.ended:
                pass  # its own silence is our doing
            elif session is None and now_ms - connection.since_ms > limits.login_ms:
                bye = Bye("timeout", f"no Hello within {limits.login_ms} ms")
            elif connection.partial_ms is not None and now_ms - connection.partial_ms > limits.partial_frame_ms:
                bye = Bye("timeout", f"a frame was not complete within {limits.partial_frame_ms} ms")
            elif session is not None and now_ms - connection.heard_ms > 3 * self._timing.client_heartbeat_ms:
                bye = Bye("timeout", f"silent for {now_ms - connection.heard_ms} ms")
            elif session is not None and session.holds:
                if session.stalled_ms is None:
                    session.stalled_ms = now_ms
                elif now_ms - session.stalled_ms > self._flow.stall_ms:
                    bye = Bye("slow", f"nothing consumed for {now_ms - session.stalled_ms} ms while publishers wait")
            if bye is not None:
                self._refuse(connection, bye)
            elif pings and session is not None:
                self._write(session, frames.Ping())

        for durable in self._homes.expired(now_ms):
            self._end_durable(self._sessions[durable.number], durable)

    # The view ----------------------------------------------------------------------------------------------------

    def _commit(self, epoch: int) -> None:
        """Serve the next view; where access points differ, clients' traffic goes its new way from here."""
        assert self._view is not None, "a second view before a first"
        former = view = self._view
        if self._next is not None and self._next.epoch == epoch:
            view = self._next
            self._view, self._next = view, None
        if former.access_points != view.access_points:
            for access_point in list(self._gathered):
                self._send_gathered(access_point)
            for slot in sorted({*former.access_points, *view.access_points}):
                self._out.append(Send(Peer(ACCESS_POINT, slot), Switch(epoch, [])))
            self._rebind(view)
        self._out.append(Send(COORDINATOR_PEER, Ended(epoch)))

    def _rebind(self, view: View) -> None:
        """From here clients' traffic goes by the access points of this view."""
        for session in self._sessions.values():
            session.access_point = Peer(ACCESS_POINT, access_point_of(view, session.key))

    def _move_clients(self, addresses: list[str], number: int) -> None:
        self._asked = number
        if self._moving != addresses:
            self._moving = addresses
            for session in self._sessions.values():
                self._write(session, frames.Move(addresses))
        self._emptied()

    def _emptied(self) -> None:
        if self._moving is None:
            return
        if not self._sessions and not self._changes:
            if not self._validity.leave():
                return  # what is valid here is on its way to another connection point
            self._out.append(Send(COORDINATOR_PEER, Emptied(self._asked)))
        elif any(session.moved and not session.arrived for session in self._sessions.values()):
            self._out.append(Send(COORDINATOR_PEER, ClientsMoved(self._asked)))

    def _epoch_end(self, exit_point: int, epoch: int) -> None:
        """An exit point has sent all of the former epoch; with the last one's word nothing of it is underway."""
        if self._ended_by[0] != epoch:
            self._ended_by = (epoch, set())
        ended = self._ended_by[1]
        ended.add(exit_point)
        if self._view is None or not ended.issuperset(self._view.exit_points):
            return
        for number in self._flushed:
            session = self._sessions.get(number)
            if session is not None:
                session.arrived = True
                self._touched[number] = session

    def _received(self, peer: Peer, message: Message) -> None:
        if self._recovering and self._view is not None and isinstance(message, Prepare | Commit | Abort):
            # The coordinator goes on: its Resume was lost with an earlier life of it.
            self._go_on(self._view.epoch)
        match message:
            case Deliver():
                self._deliver(peer.slot, message)
            case Acknowledge():
                self._acknowledge(message)
            case Changed():
                self._changed(message)
            case Relay(sender, _, content):
                self._validity.received(sender, content, leaving=self._moving is not None)
                self._emptied()
            case Install():
                self._view = view_of(message)
                self._look_about()
                self._rebind(self._view)
            case HomeFound():
                self._home_found(message)
            case Prepare():
                self._next = view_of(message)
                self._look_about()
                # Who moves later may miss something of the next epoch, of which nothing is published yet.
                self._flushed = {number for number, session in self._sessions.items() if session.moved}
            case Commit(epoch):
                self._commit(epoch)
                self._look_about()
            case Recover():
                self._recover(view_of(message))
            case Rebuild():
                self._rebuild(message)
            case Resume(epoch):
                self._go_on(epoch)
            case Abort(epoch):
                self._next = None
                self._look_about()
                self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))
            case Retire(epoch):
                self._out.append(Send(COORDINATOR_PEER, Settled(epoch)))
                if self._view is not None and self._slot not in self._view.connection_points:
                    self._flush()  # what was gathered is owed as well
                    self._out.append(Flush())
            case EpochEnd(epoch):
                self._epoch_end(peer.slot, epoch)
                self._out.append(Send(peer, EpochEnded(epoch)))
            case MoveClients(addresses, number):
                self._move_clients(addresses, number)
            case Serve():
                self._moving = None
                self._register()
                self._validity.stay()
                self._out.append(ServeClients())
            case SessionTaken(client, same_instance):
                session = self._sessions.get(client & SESSION_MASK)
                # A client that was asked to move has two sessions for a while and closes this one itself.
                moves = self._moving is not None and same_instance
                if session is not None and slot_of(client) == self._slot and session.key == client and not moves:
                    self._take_over(session, same_instance=same_instance)
            case Explain():
                self._out.append(Send(peer, self._explained(message)))
            case Drain():
                for connection in list(self._connections.values()):
                    self._refuse(connection, Bye("shutdown", "the cluster stops"))
            case _:
                raise AssertionError(f"{self._peer} got {type(message).__name__} from {peer}")


def _portions(listed: list[tuple[int, str, str]], frame_bytes: int) -> Iterator[frames.Held]:
    """Yield the subscriptions in frames of about half the size that a frame may have, one each at the least."""
    gathered: list[tuple[int, str, str]] = []
    size = 0
    for one in listed:
        gathered.append(one)
        size += len(one[1]) + 40
        if 2 * size > frame_bytes:
            yield frames.Held(gathered)
            gathered, size = [], 0
    if gathered:
        yield frames.Held(gathered)


def _parse(spelling: str, limits: FilterLimits) -> Filter:
    """Return the filter, in text form or, behind a brace, in JSON form. Raises FilterError."""
    if not spelling.startswith("{"):
        return parse(spelling, limits)
    size = len(spelling.encode())
    if size > limits.text_bytes:
        raise FilterError(f"a filter of {size} bytes, the limit is {limits.text_bytes}", limit=limits.text_bytes)
    try:
        document = msgspec.json.decode(spelling)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FilterError(f"not JSON: {error}") from error
    return Filter.from_json(document, limits)
