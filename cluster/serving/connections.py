"""The sockets: which are open, which wait for their Hello, when one has been silent or deaf for too long.

    WAITING   accepted; one Hello of at most 4 kB within 5 s
    OPEN      logged in; frames in any order
    (gone)    closed by either side; its subscriptions are removed from the matchers

Whatever else than what a state expects ends the connection with a Bye that says why.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster import frames
from cluster.codec import FrameReader, encode_frame
from cluster.frames import Bye
from cluster.messages import CloseClient, PauseClient, ResumeClient, SendClient
from cluster.serving.admission import BROKEN, FAILED, Admission
from cluster.serving.records import Connection, Session
from cluster.serving.shared import SESSION_MASK, Shared


class Connections:
    """Opens and closes connections.

    last_words: called with a session that is about to end with Bye, to tell its client what there is to tell.
    gone: called with a connection that is no more, which may still have its session.
    _waiting: by number, those without a Hello yet, the oldest first.
    """

    def __init__(
        self, shared: Shared, last_words: Callable[[Session], None], gone: Callable[[Connection], None]
    ) -> None:
        self._shared = shared
        self._last_words = last_words
        self._gone = gone
        self._waiting: dict[int, Connection] = {}
        self._admission = Admission(shared.limits.failures_per_second)

    def connected(self, number: int) -> None:
        """Somebody has connected."""
        if len(self._shared.connections) >= self._shared.limits.connections:
            self._admission.fail(self._shared.now_ms, self._shared.out)
            self.end(number, Bye("too_many", f"{self._shared.limits.connections} connections are open"))
            return
        if len(self._waiting) >= self._shared.limits.waiting_clients:
            oldest = next(iter(self._waiting.values()))
            self.refuse(
                oldest, Bye("too_many", f"{self._shared.limits.waiting_clients} connections wait for their Hello")
            )
        connection = Connection(
            number, FrameReader(self._shared.limits.first_frame_bytes), self._shared.now_ms, self._shared.now_ms
        )
        self._shared.connections[number] = self._waiting[number] = connection
        self._shared.counters["connections"] = len(self._shared.connections)

    def full(self, number: int, full: bool) -> None:
        """The client does not read what is written, or reads again."""
        connection = self._shared.connections.get(number)
        if connection is None or connection.ended:
            return
        connection.full_ms = self._shared.now_ms if full else None
        if full:
            self.pause(connection)
            return
        if connection.session is not None:
            self._shared.touched[connection.session.key & SESSION_MASK] = connection.session
        if not connection.bodies:
            self.resume(connection)

    def pause(self, connection: Connection) -> None:
        """Read its socket no more."""
        if not connection.paused:
            connection.paused = True
            self._shared.out.append(PauseClient(connection.number))

    def resume(self, connection: Connection) -> None:
        """Read its socket again."""
        if connection.paused:
            connection.paused = False
            # It could not be heard meanwhile: its deadlines begin anew.
            connection.heard_ms = self._shared.now_ms
            if connection.partial_ms is not None:
                connection.partial_ms = self._shared.now_ms
            self._shared.out.append(ResumeClient(connection.number))

    def end(self, number: int, bye: Bye) -> None:
        """Say why, and close the socket."""
        self._shared.out.append(SendClient(number, encode_frame(bye)))
        self._shared.out.append(CloseClient(number))

    def refuse(self, connection: Connection, bye: Bye) -> None:
        """End a connection, with its session, which is told first of what was dropped."""
        if connection.session is not None:
            self._shared.tell_drops(connection.session)
            self._last_words(connection.session)
        if bye.code in (FAILED if connection.session is None else BROKEN):
            self._admission.fail(self._shared.now_ms, self._shared.out)
        self._shared.counters["refused"] += 1
        self._shared.counters["slow_disconnected"] += bye.code == "slow"
        self.forget(connection)
        self.end(connection.number, bye)

    def closed(self, connection: Connection) -> None:
        """The socket is gone."""
        if connection.number in self._waiting and connection.asked is None:
            self._admission.fail(self._shared.now_ms, self._shared.out)
        self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is no more; neither is its session."""
        self._shared.connections.pop(connection.number, None)
        self._waiting.pop(connection.number, None)
        self._shared.counters["connections"] = len(self._shared.connections)
        self._gone(connection)

    def logged_in(self, connection: Connection) -> None:
        """It has had its Hello."""
        connection.reader.limit = self._shared.limits.frame_bytes
        del self._waiting[connection.number]

    # Time ---------------------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """The first tick: whoever came before it did so at an unknown time, not at 0."""
        for connection in self._shared.connections.values():
            connection.since_ms = connection.heard_ms = now_ms
            connection.partial_ms = None if connection.partial_ms is None else now_ms
            connection.full_ms = None if connection.full_ms is None else now_ms

    def _ping(self, connection: Connection, session: Session) -> None:
        if not connection.pongs and session.next_sequence is not None:
            connection.pinged = session.told
        connection.pongs += 1
        self._shared.write(session, frames.Ping())

    def pong(self, connection: Connection, session: Session) -> None:
        """The client has read everything that was written before a Ping."""
        if connection.pongs:
            connection.pongs -= 1
            if connection.pinged is not None:
                session.settled = max(session.settled, connection.pinged)
                connection.pinged = None

    def check(self, former_ms: int) -> None:
        """Let go those that have been silent or deaf for too long; ping the others. former_ms: of the tick before."""
        now_ms, heartbeat_ms = self._shared.now_ms, self._shared.timing.client_heartbeat_ms
        pings = now_ms // heartbeat_ms != former_ms // heartbeat_ms
        limits = self._shared.limits
        for connection in list(self._shared.connections.values()):
            session = connection.session
            bye = None
            if connection.full_ms is not None:
                if now_ms - connection.full_ms > 3 * heartbeat_ms:
                    bye = Bye("slow", f"nothing of what was written was read for {now_ms - connection.full_ms} ms")
            elif connection.paused or connection.ended:
                pass  # its own silence is our doing
            elif session is None and now_ms - connection.since_ms > limits.login_ms:
                bye = Bye("timeout", f"no Hello within {limits.login_ms} ms")
            elif connection.partial_ms is not None and now_ms - connection.partial_ms > limits.partial_frame_ms:
                bye = Bye("timeout", f"a frame was not complete within {limits.partial_frame_ms} ms")
            elif session is not None and now_ms - connection.heard_ms > 3 * heartbeat_ms:
                bye = Bye("timeout", f"silent for {now_ms - connection.heard_ms} ms")
            elif session is not None and session.holds:
                if session.stalled_ms is None:
                    session.stalled_ms = now_ms
                elif now_ms - session.stalled_ms > self._shared.flow.stall_ms:
                    bye = Bye("slow", f"nothing consumed for {now_ms - session.stalled_ms} ms while publishers wait")
            if bye is not None:
                self.refuse(connection, bye)
            elif pings and session is not None:
                self._ping(connection, session)
