"""A connection point that is to leave asks its clients to move first and lets no new ones in.

It is left out of a view when the last is gone. A client that has moved is let go after a view change that began
thereafter: then everything that was underway for it has come.
"""

from __future__ import annotations

from cluster import frames
from cluster.messages import COORDINATOR_PEER, ClientsMoved, Emptied, Send
from cluster.serving.changes import Changes
from cluster.serving.shared import Shared
from cluster.validity import Validity


class Leaving:
    """Sees to it that the clients go, and says when they have.

    moving:    where clients are to move, once this connection point is to leave.
    _asked:    the number of that MoveClients.
    _ended_by: an epoch, and the exit points that have begun it.
    _flushed:  sessions that had moved before the present view change began.
    """

    def __init__(self, shared: Shared, changes: Changes, validity: Validity) -> None:
        self._shared = shared
        self._changes = changes
        self._validity = validity
        self.moving: list[str] | None = None
        self._asked = 0
        self._ended_by: tuple[int, set[int]] = (0, set())
        self._flushed: set[int] = set()

    def move_clients(self, addresses: list[str], number: int) -> None:
        """Ask the clients to move to these addresses."""
        self._asked = number
        if self.moving != addresses:
            self.moving = addresses
            for session in self._shared.sessions.values():
                self._shared.write(session, frames.Move(addresses))
        self.see_emptied()

    def stay(self) -> None:
        """This connection point is not to leave after all."""
        self.moving = None

    def see_emptied(self) -> None:
        """Tell the coordinator, if it waits for it, that all clients are gone or have moved."""
        if self.moving is None:
            return
        if not self._shared.sessions and not self._changes.underway:
            if not self._validity.leave():
                return  # what is valid here is on its way to another connection point
            self._shared.out.append(Send(COORDINATOR_PEER, Emptied(self._asked)))
        elif any(session.moved and not session.arrived for session in self._shared.sessions.values()):
            self._shared.out.append(Send(COORDINATOR_PEER, ClientsMoved(self._asked)))

    def view_change(self) -> None:
        """A view change begins: who moves later may miss something of the next epoch, of which nothing is published
        yet."""
        self._flushed = {number for number, session in self._shared.sessions.items() if session.moved}

    def void(self) -> None:
        """A recovery has ended the view change."""
        self._flushed = set()

    def epoch_end(self, exit_point: int, epoch: int) -> None:
        """An exit point has sent all of the former epoch; with the last one's word nothing of it is underway."""
        if self._ended_by[0] != epoch:
            self._ended_by = (epoch, set())
        ended = self._ended_by[1]
        ended.add(exit_point)
        if self._shared.view is None or not ended.issuperset(self._shared.view.exit_points):
            return
        for number in self._flushed:
            session = self._shared.sessions.get(number)
            if session is not None:
                session.arrived = True
                self._shared.touched[number] = session
