"""What the parts of a connection point share: its view, its clients, what is to be done, and what is counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from cluster import frames
from cluster.codec import encode_frame
from cluster.config import Config
from cluster.frames import SUBSCRIPTION_BITS
from cluster.messages import ACCESS_POINT, Instruction, Message, Peer, Send, SendClient
from cluster.outbox import REASONS
from cluster.recent import Recent
from cluster.routing import access_point_of
from cluster.serving.naming import Naming
from cluster.serving.records import Connection, Session
from cluster.view import View
from cluster.watermarks import Watermarks

DROPPED_FOR = {reason: f"dropped_{reason.removeprefix('drop_')}" for reason in REASONS}
"""Counters by reason; `dropped` is their sum."""
SESSION_MASK = (1 << 32) - 1
SUBSCRIPTION_MASK = (1 << SUBSCRIPTION_BITS) - 1
"""The session's number in a client's key; the client's own number in a subscription's id."""
PUBLISHERS_REMEMBERED = 1_000_000
"""Whose last delivered sequence is kept; about 200 bytes each."""


ANSWERED_KEPT = 4096


class Shared:
    """The common ground.

    view, next:   the view that is served, and the one that is prepared.
    recovering:   from Recover to Resume: nothing is sent to access points but what Rebuild asks for.
    connections:  by number; sessions: by their own, durable ones without a connection included.
    by_client_id: the sessions that have a connection.
    touched:      by number, the sessions with something to write at the end of the round.
    watermarks:   of what was delivered here.
    answered:     when clients asked for the changes that were answered, microseconds since 1970, the last ones;
                  whoever measures takes them out.
    stores:       whether there is a matched output, for which a publication may ask to be stored; naming: its clients.
    out:          what is to be done, in order; taken after each event.
    """

    def __init__(self, slot: int, config: Config) -> None:
        self.slot = slot
        self.limits = config.client_limits
        self.flow = config.flow
        self.timing = config.timing
        self.now_ms = 0
        self.view: View | None = None
        self.next: View | None = None
        self.recovering = False
        self.connections: dict[int, Connection] = {}
        self.sessions: dict[int, Session] = {}
        self.by_client_id: dict[str, Session] = {}
        self.touched: dict[int, Session] = {}
        self.watermarks = Watermarks(PUBLISHERS_REMEMBERED)
        self.recent = Recent()
        self.answered: deque[int] = deque(maxlen=ANSWERED_KEPT)
        self.stores = config.output.path is not None
        self.naming = Naming(self.stores)
        self.out: list[Instruction] = []
        self.counters = dict.fromkeys(
            (
                *("accepted", "acknowledged", "rejected", "notifications", "duplicates", "connections", "sessions"),
                *("refused", "sent_again", "valid_given", "slow_disconnected", "dropped", *DROPPED_FOR.values()),
                *("dropped_quota", "redelivered", "dead_letters"),
            ),
            0,
        )

    def write(self, session: Session, frame: frames.Frame) -> None:
        """Have the session's client told this, if it is there."""
        if session.connection is None:
            return
        if session.greeting is not None and isinstance(frame, frames.Ping | frames.Move):
            return  # Welcome comes first; these are said again, or not needed
        self.out.append(SendClient(session.connection, encode_frame(frame)))

    def count_drops(self, counts: Mapping[str, int]) -> None:
        """So many were dropped, by reason."""
        for reason, count in counts.items():
            self.counters["dropped"] += count
            self.counters[DROPPED_FOR[reason]] += count

    def tell_drops(self, session: Session) -> None:
        """Have the client told what its outbox has dropped since it was last told, if it reads."""
        if not session.outbox.has_drops or session.connection is None:
            return
        connection = self.connections.get(session.connection)
        if connection is None or connection.full_ms is not None:
            return
        session.told_ms = self.now_ms
        self.count_drops(session.outbox.take_counts())
        for reason, drops in session.outbox.take_drops().items():
            self.write(session, frames.Dropped(reason, drops.notifications, sorted(drops.counts.items())))

    def relay(self, message: Message) -> None:
        """Have an access point pass this on to other connection points."""
        assert self.view is not None, "something to relay before a view"
        self.out.append(Send(Peer(ACCESS_POINT, access_point_of(self.view, self.slot)), message))

    def rebind(self, view: View) -> None:
        """From here clients' traffic goes by the access points of this view."""
        for session in self.sessions.values():
            session.access_point = Peer(ACCESS_POINT, access_point_of(view, session.key))
