"""What a connection point knows of a socket, of a client that has logged in, and of a change that is underway."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cluster import frames
from cluster.codec import FrameReader
from cluster.durable import DurableSession
from cluster.frames import Bye
from cluster.initial import Initial
from cluster.messages import ClientKey, Peer, Run, SubscriptionChange
from cluster.outbox import Outbox, Position

TURN_US = 1000
"""What one client may cost in a round at most, in about microseconds of one core; see turns.py."""


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
    pongs:     so many Pings are not answered. pinged: up to where publications were acknowledged before the first of
               them that the answer will tell of; None if none will.
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
    pongs: int = 0
    pinged: int | None = None


@dataclass(slots=True)
class Change:
    """A change of a subscription that the matchers have not answered.

    closed: its number if it is removed. size: bytes of a normal form that count as underway.
    connection, portion: of a durable session, who has asked, and with what the journal has it on disk.
    asked_us: when the client asked, microseconds since 1970.
    """

    session: int
    request: int | None
    closed: int | None
    size: int
    message: SubscriptionChange
    connection: int | None = None
    portion: int = 0
    asked_us: int = 0


@dataclass(slots=True)
class Session:
    """A client that has logged in.

    moved:           it holds everything at another connection point as well, and waits for what is underway; arrived:
                     that is all in its outbox.
    next_sequence:   the number its next publication must have; None before the first.
    settled:         the client knows that everything up to this is acknowledged.
    told:            up to here the client was told so, and of what credit; told <= acknowledged. awaited: the last
                     publication of which it is to be told at once. untold_bytes: of what is acknowledged and not told.
    unacknowledged:  per Publish frame that is not acknowledged: its run, lengths and payload; `flight_bytes` in all.
    subscriptions:   the change that opened or last updated it, by number; asked: its policy, and when the client asked
                     for it, microseconds since 1970.
    live:            by subscription number, whether it is open; grows with the numbers used. closed_any: whether any
                     was ever closed; closed_now: since the last Drained, so that the outbox is to be cleared of it.
    holds:           runs that wait for a place in the outbox: (position, [(exit point, token)]).
    stalled_ms:      since when holds exist and nothing was consumed.
    told_ms:         when its client was last told of drops.
    connection:      None while a durable session has none. publisher: the client's key for what it publishes.
    durable:         what a durable session is owed; its outbox stays empty.
    greeting:        of a durable session, the arguments of the Welcome that waits until the connection is on disk and
                     the matchers have answered its changes, `unanswered` of them: what it names as held is in force.
    serving:         by number, the subscriptions that are being given what is valid, or are to be; until it is empty
                     the outbox waits. initials: these, and those that may still get live what they were given. Both
                     are the durable half's own, if there is one.
    kept_any:        it has published with valid_for. not_kept: (sequence, reason), until they are acknowledged.
    settled_in:      the journal's portion that must be on disk before anything more is acknowledged.
    """

    connection: int | None
    client_id: str
    key: ClientKey
    instance: int
    access_point: Peer
    outbox: Outbox
    next_sequence: int | None = None
    acknowledged: int = 0
    settled: int = 0
    told: int = 0
    awaited: int = 0
    untold_bytes: int = 0
    told_window_bytes: int = 0
    unacknowledged: deque[tuple[Run, bytes, bytes]] = field(default_factory=deque)
    flight_bytes: int = 0
    live: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(64, np.bool_))
    subscriptions: dict[int, SubscriptionChange] = field(default_factory=dict)
    asked: dict[int, tuple[str, int]] = field(default_factory=dict)
    closed_any: bool = False
    closed_now: bool = False
    holds: deque[tuple[Position, list[tuple[int, int]]]] = field(default_factory=deque)
    stalled_ms: int | None = None
    told_ms: int | None = None
    moved: bool = False
    arrived: bool = False
    serving: dict[int, Initial] = field(default_factory=dict)
    initials: dict[int, Initial] = field(default_factory=dict)
    kept_any: bool = False
    not_kept: list[tuple[int, str]] = field(default_factory=list)
    settled_in: int = 0
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
