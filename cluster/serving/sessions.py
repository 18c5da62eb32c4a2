"""Clients that have logged in: their numbers, their queues, their Welcome."""

from __future__ import annotations

from collections.abc import Iterator

from cluster import columns, frames
from cluster.messages import ACCESS_POINT, Peer, client_key
from cluster.outbox import Outbox
from cluster.routing import access_point_of
from cluster.serving.publishing import Publishing
from cluster.serving.records import Session
from cluster.serving.shared import SESSION_MASK, Shared

SESSIONS_PER_INCARNATION = 1 << 20


class Sessions:
    """Makes sessions. They are numbered on from the incarnation's own start: no number of an earlier one comes back."""

    def __init__(self, shared: Shared, incarnation: int, publishing: Publishing) -> None:
        self._shared = shared
        self._publishing = publishing
        self._next_number = incarnation * SESSIONS_PER_INCARNATION & SESSION_MASK

    def number(self) -> int:
        """Return a number that no session has, nor an earlier incarnation's."""
        while True:
            number = self._next_number
            self._next_number = self._next_number + 1 & SESSION_MASK
            if number not in self._shared.sessions and not self._publishing.knows(number):
                return number

    def new(self, hello: frames.Hello, window: int) -> Session:
        """Begin a session; of the connection it knows nothing yet."""
        assert self._shared.view is not None, "a session before a view"
        number = self.number()
        key = client_key(self._shared.slot, number)
        session = self._shared.sessions[number] = Session(
            None,
            hello.client_id,
            key,
            hello.instance,
            Peer(ACCESS_POINT, access_point_of(self._shared.view, key)),
            self.outbox(window),
            publisher=key,
        )
        session.outbox.on_drop = self._shared.recent.watcher(key)
        return session

    def outbox(self, window: int) -> Outbox:
        """Return an empty queue for a client that can take so much at once."""
        return Outbox(
            window=window,
            flight_bytes=self._shared.flow.flight_bytes,
            queue_messages=self._shared.flow.queue_messages,
            queue_bytes=self._shared.flow.queue_bytes,
            frame_bytes=self._shared.limits.frame_bytes,
        )

    def count(self) -> None:
        """Count those that have a connection."""
        self._shared.counters["sessions"] = len(self._shared.by_client_id)

    def welcome(self, session: Session, resumed: bool, listed: list[tuple[int, str, str]]) -> None:
        """Answer Hello. listed: what a session that is resumed holds."""
        window, window_bytes = self._publishing.window()
        self._shared.write(
            session,
            frames.Welcome(
                frames.VERSION,
                session.key & SESSION_MASK if session.durable is None else session.durable.name,
                self._shared.timing.client_heartbeat_ms,
                window,
                window_bytes,
                self._shared.limits.frame_bytes,
                self._shared.limits.attributes,
                self._shared.limits.string_bytes,
                self._shared.limits.subscriptions,
                resumed,
                columns.pack(columns.UINT32, sorted(session.subscriptions)) if resumed else b"",
                len(listed),
                self._shared.stores,
            ),
        )
        for held in _portions(listed, self._shared.limits.frame_bytes):
            self._shared.write(session, held)


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
