"""Slices are started, and stopped when nobody needs them; who has heard of them hears that they are gone."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.coordinating.records import Report
from cluster.coordinating.shared import Shared
from cluster.messages import (
    CONNECTION_POINT,
    DATA_LAYERS,
    Disconnect,
    Gone,
    Member,
    Peer,
    Send,
    Serve,
    Spawn,
    Stop,
)


class Roster:
    """Has the processes of slices started and stopped."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def spawn(self, peers: Sequence[Peer]) -> None:
        """Have processes started; their incarnations are on disk before, so that none is ever given twice."""
        shared = self._shared
        for peer in peers:
            shared.memory.incarnation += 1
            shared.reports[peer] = Report(shared.memory.incarnation, shared.now_ms)
        shared.remember()
        for peer in peers:
            door = shared.memory.doors.get(peer.slot, "") if peer.layer == CONNECTION_POINT else ""
            shared.out.append(Spawn(peer, shared.reports[peer].incarnation, door))

    def let_go(self, member: Member) -> None:
        """This incarnation is no more: nobody keeps a lane to it."""
        for other, report in sorted(self._shared.reports.items()):
            if other != member.peer and report.join is not None:
                self._shared.out.append(Send(other, Gone(member)))
        self._shared.out.append(Disconnect(member))

    def dismiss(self, peer: Peer) -> None:
        """A process that is in no view is not needed any more."""
        report = self._shared.reports.pop(peer)
        if peer.layer == CONNECTION_POINT:
            self._shared.sessions.gone(peer.slot)
        if report.join is not None:
            self.let_go(report.member(peer))
        self._shared.out.append(Stop(peer, report.incarnation))

    def let_in(self, connection_points: Sequence[int]) -> None:
        """Clients may come to these."""
        epoch = self._shared.in_force.epoch
        for slot in connection_points:
            self._shared.out.append(Send(Peer(CONNECTION_POINT, slot), Serve(epoch)))

    def processes(self) -> list[tuple[Peer, int]]:
        """Return every slice that was started and not stopped, with its incarnation; in the direction of the data."""
        order = {layer: place for place, layer in enumerate(DATA_LAYERS)}
        known = sorted(self._shared.reports, key=lambda peer: (order[peer.layer], peer.slot))
        return [(peer, self._shared.reports[peer].incarnation) for peer in known]
