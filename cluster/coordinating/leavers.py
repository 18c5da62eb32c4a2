"""Slices that are to be in no view any more: their clients move first, and they go when they owe nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cluster.coordinating.roster import Roster
from cluster.coordinating.shared import Shared
from cluster.messages import CONNECTION_POINT, Drain, MoveClients, Peer, Send


class Leavers:
    """Empties connection points, and ends processes.

    _deadline_ms: by when the next client is to have moved, None for none.
    """

    def __init__(self, shared: Shared, roster: Roster) -> None:
        self._shared = shared
        self._roster = roster
        self._deadline_ms: int | None = None

    def full(self, leavers: Sequence[Peer]) -> list[int]:
        """Return the connection points of these that still have clients."""
        reports = self._shared.reports
        return [peer.slot for peer in leavers if peer.layer == CONNECTION_POINT and not reports[peer].emptied]

    def move_clients(self, slots: Sequence[int]) -> None:
        """Ask the clients of these connection points to move to those that stay."""
        shared = self._shared
        stay = [slot for slot in shared.in_force.connection_points if slot not in slots]
        addresses = []
        for slot in stay:
            join = shared.reports[Peer(CONNECTION_POINT, slot)].join
            addresses.append("" if join is None else join.client_address)
        to_ask = [slot for slot in slots if not shared.reports[Peer(CONNECTION_POINT, slot)].moving]
        if not to_ask:
            return
        shared.memory.asked += 1
        shared.remember()
        self._deadline_ms = shared.now_ms + shared.settings.move_clients_ms
        for slot in to_ask:
            shared.reports[Peer(CONNECTION_POINT, slot)].asked = shared.memory.asked
            shared.out.append(Send(Peer(CONNECTION_POINT, slot), MoveClients(addresses, shared.memory.asked)))

    def take_moved(self, slots: Sequence[int]) -> bool:
        """Tell whether clients of these have moved, which a view change will let go; it is not told twice."""
        reports = [self._shared.reports[Peer(CONNECTION_POINT, slot)] for slot in slots]
        if not any(report.moved for report in reports):
            return False
        for report in reports:
            report.moved = False
        return True

    def moved(self, peer: Peer, number: int) -> None:
        """Some client of this connection point has moved, since the MoveClients of this number.

        As they are asked a few at a time, many take long: the others have as long again.
        """
        report = self._shared.reports[peer]
        if report.asked == number and not report.moved:
            report.moved = True
            if self._deadline_ms is not None:
                self._deadline_ms = self._shared.now_ms + self._shared.settings.move_clients_ms

    def emptied(self, peer: Peer, number: int) -> None:
        """No client is left there, since the MoveClients of this number."""
        report = self._shared.reports[peer]
        report.emptied = report.emptied or report.asked == number

    def left(self, peer: Peer) -> None:
        """A slice owes nothing any more."""
        self._shared.reports[peer].left = True
        self.see_off()

    def stay(self, wanted: Collection[Peer]) -> None:
        """Take back what an earlier wish had begun: clients of these need not move."""
        for peer in sorted(wanted):
            report = self._shared.reports.get(peer)
            if report is not None and report.moving:
                report.asked = 0
                report.moved = report.emptied = False
                self._roster.let_in([peer.slot])

    def disconnect_late(self) -> None:
        """Clients that have not moved in time are disconnected."""
        shared = self._shared
        if self._deadline_ms is None or shared.now_ms <= self._deadline_ms:
            return
        self._deadline_ms = None
        for peer, report in sorted(shared.reports.items()):
            if report.moving and not report.emptied:
                shared.out.append(Send(peer, Drain()))

    def see_off(self) -> None:
        """End the processes that have left; during a view change somebody may still have something for them."""
        shared = self._shared
        if shared.transition is not None or shared.recovery is not None:
            return
        gone = [member for member in shared.memory.leaving if shared.reports[member.peer].left]
        if gone:
            shared.memory.leaving = [member for member in shared.memory.leaving if member not in gone]
            shared.remember()
        for member in gone:
            self._roster.dismiss(member.peer)

    def forget_stopped(self) -> None:
        """Of the leavers of an earlier life those that have not come again are no more."""
        shared = self._shared
        for member in list(shared.memory.leaving):
            report = shared.reports.get(member.peer)
            if report is not None and report.join is None:
                shared.memory.leaving.remove(member)
                self._roster.dismiss(member.peer)
