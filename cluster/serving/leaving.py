"""A connection point that is to leave asks its clients to move first and lets no new ones in.

It is left out of a view when the last is gone. A client that has moved is let go after a view change that began
thereafter: then everything that was underway for it has come.

Its durable sessions go another way: see `handing.py`.
"""

from __future__ import annotations

from cluster import frames
from cluster.messages import COORDINATOR_PEER, ClientsMoved, Emptied, Send
from cluster.serving.changes import Changes
from cluster.serving.handing import Handing
from cluster.serving.records import Session
from cluster.serving.shared import Shared
from cluster.validity import Validity


class Leaving:
    """Sees to it that the clients go, and says when they have.

    moving:    where clients are to move, once this connection point is to leave.
    _stays:    it is not to leave after all, and lets clients in again when its durable sessions are gone.
    _asked:    the number of that MoveClients.
    _ended_by: an epoch, and the exit points that have begun it.
    _flushed:  sessions that had moved before the present view change began.
    """

    def __init__(self, shared: Shared, changes: Changes, validity: Validity) -> None:
        self._shared = shared
        self._changes = changes
        self._validity = validity
        self._handing: Handing | None = None
        self._stays = False
        self.moving: list[str] | None = None
        self._asked = 0
        self._ended_by: tuple[int, set[int]] = (0, set())
        self._flushed: set[int] = set()

    def with_sessions(self, handing: Handing) -> None:
        """Durable sessions go by this."""
        self._handing = handing

    @property
    def handing(self) -> Handing:
        """How durable sessions go."""
        assert self._handing is not None, "not put together"
        return self._handing

    def move_clients(self, addresses: list[str], number: int) -> None:
        """Ask the clients to move to these addresses, each in turn to another one first: they try them in order."""
        self._asked = number
        self._stays = False
        if self.moving != addresses:
            self.moving = addresses
            for place, session in enumerate(self._shared.sessions.values()):
                first = place % max(len(addresses), 1)
                self._shared.write(session, frames.Move([*addresses[first:], *addresses[:first]]))
        self.see_emptied()

    @property
    def takes_none(self) -> bool:
        """No durable session is to come here."""
        return self.moving is not None or self.handing.settled

    def stay(self) -> None:
        """This connection point is not to leave after all."""
        self.handing.stay()
        self._stays = self.moving is not None and self.handing.underway
        if not self._stays:
            self.moving = None

    def ended(self, session: Session) -> None:
        """A durable session is no more."""
        self.handing.ended(session)
        self.see_emptied()

    def see_emptied(self) -> None:
        """Tell the coordinator, if it waits for it, that all clients are gone or have moved."""
        if self._stays and not self.handing.underway:
            self._stays, self.moving = False, None
        if self.moving is None or self._stays:
            return
        self.handing.begin(self.moving)  # one may have come here in the meantime
        if not self._shared.sessions and self._changes.settled:
            if not self._validity.leave() or not self.handing.forgotten:
                return  # what is valid here is on its way to another connection point, or the disk has not followed
            self._shared.out.append(Send(COORDINATOR_PEER, Emptied(self._asked)))
        elif self.handing.all_held or any(
            session.moved and not session.arrived for session in self._shared.sessions.values()
        ):
            self._shared.out.append(Send(COORDINATOR_PEER, ClientsMoved(self._asked)))

    def view_change(self) -> None:
        """A view change begins: who moves later may miss something of the next epoch, of which nothing is published
        yet."""
        self._flushed = {number for number, session in self._shared.sessions.items() if session.moved}
        self.handing.view_change()

    def void(self) -> None:
        """A recovery has ended the view change."""
        self._flushed = set()
        self.handing.void()

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
        self.handing.flushed()
