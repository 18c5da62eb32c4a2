"""A connection point that is to leave asks its clients to move first and lets no new ones in.

They are asked a few at a time, the next when those before hold everything elsewhere: each of them restores its
subscriptions there, and all at once would keep that connection point so busy that publications are late. Nobody is in
a hurry, as both connection points serve a client that moves. Who does not move holds nobody up for long.

It is left out of a view when the last is gone. A client that has moved is let go after a view change that began
thereafter: then everything that was underway for it has come.

Its durable sessions go another way: see `handing.py`.
"""

from __future__ import annotations

from collections import deque

from cluster import frames
from cluster.messages import COORDINATOR_PEER, ClientsMoved, Emptied, Send
from cluster.serving.changes import Changes
from cluster.serving.handing import Handing
from cluster.serving.records import Session
from cluster.serving.shared import Shared
from cluster.validity import Validity

MOVING_AT_ONCE = 500
"""Clients that have been asked and have not moved, and the subscriptions that they hold; one client may go over it."""
PATIENCE_MS = 1000
"""So long is waited for one of them before others are asked."""


class Leaving:
    """Sees to it that the clients go, and says when they have.

    moving:    where clients are to move, once this connection point is to leave.
    _stays:    it is not to leave after all, and lets clients in again when its durable sessions are gone.
    _asked:    the number of that MoveClients.
    _to_ask:   sessions that have not been asked to move, and each one's place among all.
    _going:    those that were asked and have not moved: until when others wait for them, and what they count.
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
        self._to_ask: deque[tuple[int, int]] = deque()
        self._going: dict[int, tuple[int, int]] = {}
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
            # Durable sessions are handed over by us, and their clients sent after them.
            ordinary = [number for number, session in self._shared.sessions.items() if session.durable is None]
            self._to_ask = deque((number, place) for place, number in enumerate(ordinary))
            self._going = {}
        self.see_emptied()

    def tick(self) -> None:
        """Some who were asked may not move."""
        if self._to_ask and self.moving is not None and not self._stays:
            self._ask(self.moving)

    def _ask(self, addresses: list[str]) -> None:
        """Ask further clients, as far as those before have moved."""
        sessions, now_ms = self._shared.sessions, self._shared.now_ms
        for number, (until_ms, _) in list(self._going.items()):
            session = sessions.get(number)
            if session is None or session.moved or now_ms > until_ms:
                del self._going[number]
        room = MOVING_AT_ONCE - sum(count for _, count in self._going.values())
        while self._to_ask:
            number, place = self._to_ask[0]
            session = sessions.get(number)
            if session is not None and not session.moved:
                count = 1 + len(session.subscriptions)
                if self._going and count > room:
                    break
                room -= count
                self._going[number] = (now_ms + PATIENCE_MS, count)
                first = place % max(len(addresses), 1)
                self._shared.write(session, frames.Move([*addresses[first:], *addresses[:first]]))
            self._to_ask.popleft()

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
        if self._to_ask:
            self._ask(self.moving)
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
