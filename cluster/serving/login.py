"""Hello: who may log in, where a durable session lives, and which of two connections with one client id stays."""

from __future__ import annotations

from collections import Counter

from cluster import frames
from cluster.config import Config
from cluster.frames import Bye
from cluster.homes import Homes
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    DurableEnded,
    DurableHomes,
    FindHome,
    HomeFound,
    Peer,
    Send,
    SessionOpened,
)
from cluster.serving.attaching import Attaching
from cluster.serving.connections import Connections
from cluster.serving.leaving import Leaving
from cluster.serving.records import Connection, Refusal, Session
from cluster.serving.sessions import Sessions
from cluster.serving.shared import Shared


class Login:
    """Lets clients in.

    _asking: client id -> questions about its home that are not answered.
    """

    def __init__(
        self,
        shared: Shared,
        config: Config,
        connections: Connections,
        sessions: Sessions,
        homes: Homes,
        attaching: Attaching,
        leaving: Leaving,
    ) -> None:
        self._shared = shared
        self._durable = config.durable
        self._connections = connections
        self._sessions = sessions
        self._homes = homes
        self._attaching = attaching
        self._leaving = leaving
        self._asking: Counter[str] = Counter()

    def hello(self, connection: Connection, hello: frames.Hello) -> None:
        """Check the client's first frame, and log it in, or ask first where its session lives. Raises Refusal."""
        assert self._shared.view is not None, "clients are let in before a view"
        if hello.version != frames.VERSION:
            raise Refusal("version", f"protocol version {hello.version}, this cluster speaks {frames.VERSION}")
        if not 1 <= len(hello.client_id.encode()) <= 128 or not hello.client_id.isprintable():
            raise Refusal("client_id", "a client id has 1 to 128 bytes, all printable")
        if not 0 <= hello.instance < 1 << 64:
            raise Refusal("malformed", "an instance is 0 <= instance < 2**64")
        if hello.receive_window < 1:
            raise Refusal("malformed", f"a receive window of {hello.receive_window}")
        if self._leaving.moving is not None:
            raise Refusal("shutdown", "this connection point is about to leave")
        if hello.durable:
            if not 0 <= hello.expires_s <= self._durable.expires_s_max:
                limit = self._durable.expires_s_max
                raise Refusal("durable", f"expires is {hello.expires_s} s, the limit is {limit} s")
            if hello.max_deliver < 0:
                raise Refusal("durable", f"max_deliver is {hello.max_deliver}")
            if self._leaving.handing.settled:
                raise Refusal("unavailable", "the durable sessions of this connection point are about to move")
            if self._homes.find(hello.client_id) is None:
                # It may live elsewhere.
                connection.asked = hello
                self._ask(connection.number, hello)
                return
        self.open(connection, hello)

    def open(self, connection: Connection, hello: frames.Hello) -> None:
        """Log the client in."""
        assert self._shared.view is not None, "clients are let in before a view"
        if hello.durable and self._homes.find(hello.client_id) is None and self._homes.full:
            raise Refusal("durable", f"{self._durable.sessions} durable sessions live here")
        older = self._shared.by_client_id.get(hello.client_id)
        if older is not None:
            self.take_over(older, same_instance=older.instance == hello.instance)
        window = min(hello.receive_window, self._shared.flow.receive_window)
        session = self._attaching.attach(hello, window) if hello.durable else self._sessions.new(hello, window)
        session.connection = connection.number
        session.instance = hello.instance
        connection.session = session
        self._connections.logged_in(connection)
        self._shared.by_client_id[hello.client_id] = session
        self._sessions.count()
        if session.durable is None:
            self._sessions.welcome(session, False, [])
        self._shared.out.append(Send(COORDINATOR_PEER, SessionOpened(hello.client_id, session.key, hello.instance)))

    def take_over(self, older: Session, *, same_instance: bool) -> None:
        """End a session as its client has logged in again."""
        assert older.connection is not None, f"{older.client_id} is not connected"
        connection = self._shared.connections[older.connection]
        code = "moved" if same_instance else "taken_over"
        self._connections.refuse(connection, Bye(code, f"client id {older.client_id!r} has connected again"))

    def report(self) -> None:
        """The coordinator may be a new one, which knows of none."""
        asked = [one for one in self._shared.connections.values() if one.asked is not None]
        self._shared.out.append(Send(COORDINATOR_PEER, DurableHomes(self._homes.client_ids, list(self._asking))))
        for connection in asked:
            assert connection.asked is not None, "just looked"
            self._ask(connection.number, connection.asked)
        for session in self._shared.by_client_id.values():
            opened = SessionOpened(session.client_id, session.key, session.instance)
            self._shared.out.append(Send(COORDINATOR_PEER, opened))

    def _ask(self, connection: int, hello: frames.Hello) -> None:
        self._asking[hello.client_id] += 1
        self._shared.out.append(Send(COORDINATOR_PEER, FindHome(hello.client_id, connection)))

    def home_found(self, message: HomeFound) -> Connection | None:
        """The coordinator says where a durable session lives; return the connection if its client is logged in now."""
        client_id, home, address = message.client_id, message.home, message.address
        connection = self._shared.connections.get(message.connection)
        hello = None if connection is None else connection.asked
        self._asking -= Counter({client_id: 1})
        if connection is None or hello is None or hello.client_id != client_id:
            if home == self._shared.slot:
                self._not_begun(client_id)
            return None
        connection.asked = None
        if home != self._shared.slot:
            if address:
                bye = Bye("redirect", f"the durable session lives at {Peer(CONNECTION_POINT, home)}", address)
            elif home < 0:
                bye = Bye("unavailable", "where the durable session lives is not known yet")
            else:
                bye = Bye("unavailable", f"the durable session lives at {Peer(CONNECTION_POINT, home)}, which is away")
            self._connections.refuse(connection, bye)
            return None
        try:
            if self._leaving.moving is not None or self._leaving.handing.settled:
                raise Refusal("shutdown", "this connection point is about to leave")
            self.open(connection, hello)
        except Refusal as refusal:
            self._not_begun(client_id)
            self._connections.refuse(connection, refusal.bye)
            return None
        return connection

    def _not_begun(self, client_id: str) -> None:
        """A session was to live here, and its client is gone; unless another connection of it waits for the word."""
        if self._homes.find(client_id) is None and client_id not in self._asking:
            self._shared.out.append(Send(COORDINATOR_PEER, DurableEnded(client_id)))
