"""Whose frames are read next: no client may keep the others waiting.

Each has an allowance of work for a round, which ends with Drained; what it sends beyond it waits, its socket is not
read meanwhile, and the next round goes on where this one stopped. A client that does not read what it is told is not
listened to either, until it does. Changes that the matchers have not answered are bounded over all clients; the next
ones wait their turn too.
"""

from __future__ import annotations

from cluster.codec import FrameTooLargeError, decode_client_frame
from cluster.errors import CodecError
from cluster.frames import Bye
from cluster.messages import Again, ClientBytes
from cluster.serving.changes import Changes
from cluster.serving.connections import Connections
from cluster.serving.records import TURN_US, Connection, Refusal
from cluster.serving.requests import Requests
from cluster.serving.shared import Shared
from cluster.validity import Validity

ROUND_US = 2000
TURN_US_MIN = 100
"""What all clients that are behind may cost in a round, and one of them at the least (TURN_US at the most), in about
microseconds of one core; the costs are as measured. So others wait about two milliseconds for a flood, and a lone
client loads its ten thousand subscriptions with few rounds."""
FRAMES_PER_US = 2
"""Cut from the stream; paid when they come, and the rest when they are handled."""
FRAME_US = 5


class Turns:
    """Reads clients, each in its turn.

    _behind: connections whose frames wait, the next to have its turn first; _spent: those without their full allowance.
    """

    def __init__(
        self, shared: Shared, connections: Connections, requests: Requests, changes: Changes, validity: Validity
    ) -> None:
        self._shared = shared
        self._connections = connections
        self._requests = requests
        self._changes = changes
        self._validity = validity
        self._behind: dict[int, Connection] = {}
        self._spent: dict[int, Connection] = {}

    def closed(self, number: int) -> None:
        """The client's socket is gone."""
        connection = self._shared.connections.get(number)
        if connection is None:
            return
        if connection.bodies and connection.session is not None:
            # What a client sent before it left counts, be its turn yet to come.
            connection.ended = True
            connection.full_ms = None
            return
        self._connections.closed(connection)

    def take(self, event: ClientBytes) -> None:
        """Take what has come of a client."""
        connection = self._shared.connections.get(event.connection)
        if connection is None:
            return  # already told to close
        connection.heard_ms = self._shared.now_ms
        connection.now_us = event.now_us
        try:
            bodies = connection.reader.feed(event.data)
        except FrameTooLargeError as error:
            self._connections.refuse(connection, Bye("too_large", str(error)))
            return
        if bodies or not connection.reader.pending:
            connection.partial_ms = None
        if connection.reader.pending and connection.partial_ms is None:
            connection.partial_ms = self._shared.now_ms
        connection.bodies.extend(bodies)
        connection.allowance -= len(bodies) // FRAMES_PER_US
        if bodies and connection.number not in self._behind:
            self.work(connection)

    def work(self, connection: Connection) -> None:
        """Handle the frames that wait, as far as the client's allowance goes."""
        bodies = connection.bodies
        number = connection.number
        try:
            while bodies and self._may_go_on(connection):
                frame = decode_client_frame(bodies[0])
                if self._requests.must_wait(connection, frame):
                    connection.waits = True
                    break
                bodies.popleft()
                connection.allowance -= FRAME_US
                self._requests.handle(connection, frame, connection.now_us)
                if number not in self._shared.connections:
                    return
        except CodecError as error:
            self._connections.refuse(connection, Bye("malformed", str(error)))
            return
        except Refusal as refusal:
            self._connections.refuse(connection, refusal.bye)
            return
        self._spent[number] = connection
        if bodies:
            self._behind[number] = connection
            self._connections.pause(connection)
            return
        self._behind.pop(number, None)
        if connection.ended:
            self._connections.forget(connection)
        elif connection.full_ms is None:
            self._connections.resume(connection)

    def _may_go_on(self, connection: Connection) -> bool:
        return (
            connection.allowance > 0
            and connection.full_ms is None
            and not connection.waits
            and connection.asked is None
        )

    def next_round(self) -> None:
        """Begin a round: give out allowances, and go on with those who are behind."""
        if not self._spent and not self._behind:
            return
        turn = TURN_US
        if self._behind:
            turn = min(TURN_US, max(TURN_US_MIN, ROUND_US // len(self._behind)))
        spent, self._spent = self._spent, {}
        for number, connection in spent.items():
            connection.allowance = turn if connection.allowance >= 0 else connection.allowance + turn
            if connection.allowance < TURN_US:
                self._spent[number] = connection
        if not self._behind:
            return
        may_go_on = not self._shared.recovering and not self._changes.full and not self._validity.full
        for number, connection in list(self._behind.items()):
            connection.waits = connection.waits and not may_go_on
            if number in self._behind:
                # Whoever is stopped by what those before it did comes before them the next time.
                if connection.allowance > 0 and not connection.waits:
                    del self._behind[number]
                self.work(connection)
        if any(
            connection.full_ms is None and not connection.waits and connection.asked is None
            for connection in self._behind.values()
        ):
            self._shared.out.append(Again())

    def forget(self, number: int) -> None:
        """The connection is no more."""
        self._behind.pop(number, None)
        self._spent.pop(number, None)
