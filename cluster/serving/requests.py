"""What a client asks for, by the kind of its frame, and what that costs it."""

from __future__ import annotations

from cluster import frames
from cluster.messages import CloseClient
from cluster.serving.attaching import Attaching
from cluster.serving.changes import Changes
from cluster.serving.connections import Connections
from cluster.serving.leaving import Leaving
from cluster.serving.login import Login
from cluster.serving.publishing import Publishing
from cluster.serving.records import Connection, Refusal
from cluster.serving.shared import SESSION_MASK, Shared
from cluster.serving.subscribing import CHANGE_US, Subscribing
from cluster.validity import Validity

PUBLISH_US = 20
KEEP_US = 10
"""For each publication with valid_for."""


class Requests:
    """A switch from frames to the parts."""

    def __init__(
        self,
        shared: Shared,
        connections: Connections,
        login: Login,
        attaching: Attaching,
        publishing: Publishing,
        subscribing: Subscribing,
        changes: Changes,
        leaving: Leaving,
        validity: Validity,
    ) -> None:
        self._shared = shared
        self._connections = connections
        self._login = login
        self._attaching = attaching
        self._publishing = publishing
        self._subscribing = subscribing
        self._changes = changes
        self._leaving = leaving
        self._validity = validity

    def must_wait(self, connection: Connection, frame: frames.ClientFrame) -> bool:
        """Tell whether the frame's turn has not come: too much of its kind is under way, or a recovery, or the session
        is about to go elsewhere with the subscriptions that it has."""
        if isinstance(frame, frames.Publish):
            return self._shared.recovering
        if isinstance(frame, (frames.Subscribe, frames.Unsubscribe)):
            session = connection.session
            if session is not None and session.durable is not None and self._leaving.handing.underway:
                return True
            return self._shared.recovering or self._changes.full
        if isinstance(frame, frames.Unpublish):
            return self._shared.recovering or self._validity.full
        return False

    def handle(self, connection: Connection, frame: frames.ClientFrame, now_us: int) -> None:
        """Do what the client asks for. Raises Refusal."""
        session = connection.session
        if session is None:
            if not isinstance(frame, frames.Hello):
                raise Refusal("malformed", f"{type(frame).__name__} before Hello")
            self._login.hello(connection, frame)
            return
        match frame:
            case frames.Publish():
                connection.allowance -= PUBLISH_US
                if frame.valid_for_ms:
                    connection.allowance -= KEEP_US * len(frame.lengths) // 4
                self._publishing.publish(session, frame, now_us)
            case frames.Consumed(count) if session.durable is not None:
                if not session.durable.consume(count):
                    raise Refusal("malformed", f"position {count} reported as consumed, which was never sent")
                session.stalled_ms = None
                self._shared.touched[session.key & SESSION_MASK] = session
            case frames.Settle():
                self._attaching.settle(session, frame)
            case frames.Consumed(count):
                before = session.outbox.consumed
                if not session.outbox.consume(count):
                    raise Refusal(
                        "malformed", f"{count} notifications reported as consumed, {session.outbox.sent} were sent"
                    )
                if count > before:
                    session.stalled_ms = None
                self._shared.touched[session.key & SESSION_MASK] = session
            case frames.Subscribe():
                connection.allowance -= self._subscribing.subscribe(session, frame)
            case frames.Unsubscribe():
                connection.allowance -= CHANGE_US
                self._subscribing.unsubscribe(session, frame)
            case frames.Unpublish(request, instance, sequence):
                connection.allowance -= CHANGE_US
                self._validity.unpublish(connection.number, request, session.client_id, instance, sequence)
            case frames.Pong():
                self._connections.pong(connection, session)
            case frames.Goodbye(end_session):
                self._connections.forget(connection)
                if end_session and session.durable is not None:
                    self._attaching.end(session, session.durable)
                self._shared.out.append(CloseClient(connection.number))
            case frames.Moved():
                session.moved = True
                self._leaving.see_emptied()
            case frames.Hello():
                raise Refusal("malformed", "a second Hello")
