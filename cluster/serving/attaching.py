"""Durable sessions and their connections.

A durable session (`durable/`) outlives its connections, and this incarnation: what it is owed is on disk. Whatever
promises that waits until it is so: the token of a run that it gets something of, the answer to a subscription, Welcome.
It has a client key of its own, by which it gets notifications for as long as it lives, and for each connection another
one, under which that one publishes, so that no acknowledgement is taken for a later connection's.
"""

from __future__ import annotations

from functools import partial

from cluster import columns, frames
from cluster.durable import DurableSession
from cluster.homes import Homes
from cluster.journal import Recovered
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    DurableEnded,
    Peer,
    Send,
    SubscriptionChange,
    client_key,
    subscription_id,
)
from cluster.serving.changes import Changes
from cluster.serving.leaving import Leaving
from cluster.serving.publishing import Publishing
from cluster.serving.records import Refusal, Session
from cluster.serving.sessions import Sessions
from cluster.serving.shared import SESSION_MASK, SUBSCRIPTION_MASK, Shared
from cluster.validity import Validity


class Attaching:
    """Begins durable sessions, takes them up again, ends them.

    _unregistered: restored sessions, whose subscriptions the matchers may not know.
    """

    def __init__(
        self,
        shared: Shared,
        homes: Homes,
        sessions: Sessions,
        publishing: Publishing,
        changes: Changes,
        leaving: Leaving,
        validity: Validity,
    ) -> None:
        self._shared = shared
        self._homes = homes
        self._journal = homes.journal
        self._sessions = sessions
        self._publishing = publishing
        self._changes = changes
        self._leaving = leaving
        self._validity = validity
        self._unregistered: list[Session] = []

    def restore(self, recovered: Recovered) -> None:
        """Take up what an earlier incarnation of this slot has left on disk."""
        for publisher, instance, sequence in recovered.took:
            self._shared.watermarks.raise_to((publisher, instance), sequence)
        for durable in self._homes.restore(recovered):
            session = self.detached(durable, Peer(ACCESS_POINT, 0))
            for number, held in durable.subscriptions.items():
                identity = subscription_id(session.key, number)
                session.subscriptions[number] = SubscriptionChange(self._changes.number(), identity, held.normal_form)
            self._unregistered.append(session)

    def detached(self, durable: DurableSession, access_point: Peer) -> Session:
        """Return a session without a connection."""
        session = self._shared.sessions[durable.number] = Session(
            None,
            durable.client_id,
            client_key(self._shared.slot, durable.number),
            durable.instance,
            access_point,
            self._sessions.outbox(1),
            durable=durable,
            serving=durable.serving,
            initials=durable.initials,
        )
        # What a subscription matched that was closed before may still come, of whatever number.
        session.live = columns.mask_with(session.live, SUBSCRIPTION_MASK)
        session.live[list(durable.subscriptions)] = True
        session.closed_any = True
        return session

    def awaits(self, session: Session) -> bool:
        """Tell whether a restored session's subscriptions are still to be told to the matchers."""
        return any(one is session for one in self._unregistered)

    def register(self) -> None:
        """Clients are let in: the matchers are to know what was restored, unless a recovery has told them."""
        unregistered, self._unregistered = self._unregistered, []
        for session in unregistered:
            for held in list(session.subscriptions.values()):
                number = held.subscription & SUBSCRIPTION_MASK
                change = self._changes.note(session.key & SESSION_MASK, None, None, held.subscription, held.normal_form)
                session.subscriptions[number] = change
                self._changes.send(session.access_point, [change])

    def attach(self, hello: frames.Hello, window: int) -> Session:
        """Begin a durable session, or go on with it; Welcome goes out when that is on disk."""
        durable = self._homes.find(hello.client_id)
        resumed = durable is not None
        listed: list[tuple[int, str, str]] = []
        if durable is None:
            session = self._sessions.new(hello, 1)
            durable = session.durable = self._homes.open(session.key & SESSION_MASK, hello.client_id)
            session.serving, session.initials = durable.serving, durable.initials
        else:
            session = self._shared.sessions[durable.number]
            if hello.session != durable.name:
                listed = [(number, held.filter, held.policy) for number, held in sorted(durable.subscriptions.items())]
        number = self._sessions.number()
        session.publisher = client_key(self._shared.slot, number)
        self._publishing.begin(number, session)
        durable.attach(window, hello.instance, expires_s=hello.expires_s, max_deliver=hello.max_deliver)
        session.greeting = (resumed, listed)
        self._journal.then(partial(self.greet, session))
        return session

    def greet(self, session: Session) -> None:
        """Say Welcome to a durable session's client, once that can be said."""
        durable, greeting = session.durable, session.greeting
        if greeting is not None and durable is not None and durable.is_open and not session.unanswered:
            session.greeting = None
            self._sessions.welcome(session, *greeting)
            self._shared.touched[durable.number] = session

    def detach(self, session: Session, durable: DurableSession) -> None:
        """The connection is gone; the session stays."""
        session.connection = None
        session.greeting = None
        self._publishing.end(session)
        durable.detach(self._shared.now_ms or None)  # there is no clock before the first tick
        self._shared.touched[durable.number] = session

    def end(self, session: Session, durable: DurableSession) -> None:
        """Its client wants it no more, or it has expired, or lives elsewhere now."""
        self.discard(session)
        self._shared.out.append(Send(COORDINATOR_PEER, DurableEnded(session.client_id)))
        self._leaving.ended(session)

    def discard(self, session: Session) -> None:
        """Forget a session that has no connection, and have the matchers do so."""
        durable = session.durable
        assert durable is not None, "not durable"
        self._unregistered = [one for one in self._unregistered if one is not session]
        del self._shared.sessions[durable.number]
        self._shared.naming.end(session.key)
        self._shared.touched.pop(durable.number, None)
        for initial in durable.serving.values():
            self._validity.forget(durable.number, initial)
        self._homes.end(durable)
        self._changes.close_all(session)

    def settle(self, session: Session, frame: frames.Settle) -> None:
        """The client has taken notifications, or refuses them. Raises Refusal."""
        durable = session.durable
        if durable is None:
            raise Refusal("malformed", "Settle in a session that is not durable")
        if len(frame.acknowledged) % 8 or len(frame.refused) % 8:
            raise Refusal("malformed", "the columns of Settle are not of uint64")
        acknowledged = columns.unpack(columns.UINT64, frame.acknowledged)
        if not durable.acknowledge(acknowledged) or not durable.refuse(columns.unpack(columns.UINT64, frame.refused)):
            raise Refusal("malformed", "Settle names a position that was never sent")
        session.stalled_ms = None
        self._shared.touched[durable.number] = session

    def told(self) -> None:
        """A recovery tells the matchers all there is."""
        self._unregistered = []

    def expire(self) -> None:
        """End the sessions that have been without a connection for too long."""
        for durable in self._homes.expired(self._shared.now_ms):
            self.end(self._shared.sessions[durable.number], durable)
