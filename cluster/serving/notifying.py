"""From the queues of sessions to their sockets, as far as credit goes; what does not fit is the policies' affair.

The hard case is a subscriber that does not keep up; `outbox.py` decides about it, and `durable/` for a durable
session.

Its drops are counted at once and told seldom: DROPS_TOLD_MS after it was last told, in front of the next notifications
that it gets, and before its connection ends or a change of its subscriptions is answered. Told one by one they would
cost as much as the notifications.
"""

from __future__ import annotations

from cluster.durable import DurableSession
from cluster.frames import Bye
from cluster.serving.connections import Connections
from cluster.serving.delivering import Delivering
from cluster.serving.giving import Giving
from cluster.serving.records import Session
from cluster.serving.shared import Shared

DROPS_TOLD_MS = 100
"""A client is told this often of what it loses, at the most, while nothing else is written to it."""


class Notifying:
    """Writes to the sessions that were touched in a round.

    _untold: by number, sessions with drops that were kept back for a while.
    """

    def __init__(self, shared: Shared, connections: Connections, delivering: Delivering, giving: Giving) -> None:
        self._shared = shared
        self._connections = connections
        self._delivering = delivering
        self._giving = giving
        self._untold: dict[int, Session] = {}

    def tick(self) -> None:
        """Have the round tell drops that were kept back for long enough."""
        for number, session in list(self._untold.items()):
            if self._shared.sessions.get(number) is not session:
                del self._untold[number]
            elif self._is_due(session):
                del self._untold[number]
                self._shared.touched[number] = session

    def _is_due(self, session: Session) -> bool:
        return session.told_ms is None or self._shared.now_ms - session.told_ms >= DROPS_TOLD_MS

    def flush(self) -> None:
        """Write what there is for the sessions that were touched in this round."""
        shared = self._shared
        if not shared.touched:
            return
        touched, shared.touched = shared.touched, {}
        for number, session in touched.items():
            if session.durable is not None:
                self._flush_durable(session, session.durable)
                continue
            assert session.connection is not None, f"{session.client_id} is not connected"
            if session.closed_now:
                # Once a round and not once a close: a client may close thousands.
                session.closed_now = False
                session.outbox.keep(session.live)
            readable = shared.connections[session.connection].full_ms is None
            if session.serving and readable:
                self._giving.give(number, session)
            if readable and not session.serving:
                chunks = session.outbox.take()
                if chunks:
                    shared.tell_drops(session)
                    shared.recent.sent(session.key, session.outbox.sent - sum(map(len, chunks)), chunks)
                for chunk in chunks:
                    shared.counters["notifications"] += len(chunk)
                    shared.write(session, chunk.frame())
            self._settle(number, session)
            if session.outbox.overflowed:
                self._connections.refuse(shared.connections[session.connection], self._overflow())
                continue
            if session.holds:
                self._delivering.release(session)
            if session.arrived and not session.outbox.queued and not session.holds and not session.serving:
                bye = Bye("moved", "all that was underway has come")
                self._connections.refuse(shared.connections[session.connection], bye)

    def _settle(self, number: int, session: Session) -> None:
        """Apply the policies to what did not fit in flight; count what was dropped, and tell it when it is due."""
        self._shared.count_drops(session.outbox.settle())
        if session.outbox.has_drops:
            if self._is_due(session):
                self._shared.tell_drops(session)
            else:
                self._untold[number] = session

    def _overflow(self) -> Bye:
        limits = f"{self._shared.flow.queue_messages} notifications or {self._shared.flow.queue_bytes} bytes"
        return Bye("slow", f"policy disconnect: more than {limits} wait, the limit of a client's queue")

    def _flush_durable(self, session: Session, durable: DurableSession) -> None:
        if session.closed_now:
            session.closed_now = False
            durable.keep(session.live)
        if session.serving:
            self._giving.queue(durable.number, session, durable)
        connection = None if session.connection is None else self._shared.connections[session.connection]
        if connection is not None and session.greeting is None and connection.full_ms is None:
            for portion in durable.take():
                self._shared.counters["notifications"] += len(portion)
                self._shared.counters["redelivered"] += sum(portion.again)
                self._shared.write(session, portion.frame())
            for drops in durable.take_drops():
                self._shared.write(session, drops)
        dropped, dead = durable.take_counts()
        self._shared.counters["dropped"] += dropped
        self._shared.counters["dropped_quota"] += dropped
        self._shared.counters["dead_letters"] += dead
        if session.holds:
            self._delivering.release(session)
