"""What connection points say of who is logged in with them, and ask about durable sessions; see `sessions.py`."""

from __future__ import annotations

from cluster.coordinating.shared import Shared
from cluster.messages import (
    CONNECTION_POINT,
    DurableEnded,
    DurableHomes,
    DurableMoved,
    FindHome,
    HomeFound,
    Peer,
    Send,
    SessionClosed,
    SessionOpened,
)


class Logins:
    """Passes on what connection points say to `Sessions`, and its answers to them."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def take(
        self,
        peer: Peer,
        message: SessionOpened | SessionClosed | DurableHomes | DurableMoved | DurableEnded | FindHome,
    ) -> None:
        """A connection point has said something about its clients, or asks about one."""
        match message:
            case SessionOpened() | SessionClosed():
                self._shared.out += self._shared.sessions.handle(message)
            case DurableHomes() | DurableEnded():
                self._shared.sessions.durables(peer.slot, message)
            case DurableMoved(client_id):
                self._shared.sessions.durables(peer.slot, message)
                self._shared.out.append(Send(peer, HomeFound(client_id, -1, peer.slot, "")))
            case FindHome():
                self._shared.out.append(Send(peer, self._home(peer.slot, message)))

    def _home(self, slot: int, question: FindHome) -> HomeFound:
        shared = self._shared
        slots = () if shared.view is None else shared.view.connection_points
        home = shared.sessions.home(slot, question, slots)
        report = shared.reports.get(Peer(CONNECTION_POINT, home))
        if report is not None and report.moving and home != slot:
            home, report = -1, None  # it is about to move
        away = report is None or report.join is None or shared.lost(report)
        address = "" if away or report is None or report.join is None else report.join.client_address
        return HomeFound(question.client_id, question.connection, home, address)
