"""Slices that a view is to have: started, joined, connected and warm before anybody else hears of them."""

from __future__ import annotations

from collections.abc import Sequence, Set

from cluster.coordinating.roster import Roster
from cluster.coordinating.shared import Shared
from cluster.messages import Peer, Send


class Newcomers:
    """Brings newcomers to where they can be taken into a view. deadline_ms: by when, None if nobody waits for any."""

    def __init__(self, shared: Shared, roster: Roster) -> None:
        self._shared = shared
        self._roster = roster
        self.deadline_ms: int | None = None

    def ready(self, newcomers: Sequence[Peer]) -> bool:
        """Have those started that are not; tell whether all are there, connected and warm."""
        shared = self._shared
        if not shared.leaving.isdisjoint(newcomers):
            return False  # a slot whose former process has not left yet
        unknown = [peer for peer in newcomers if peer not in shared.reports]
        if unknown:
            self.deadline_ms = shared.now_ms + shared.settings.start_timeout_ms
            self._roster.spawn(unknown)
        for peer in newcomers:
            report = shared.reports[peer]
            if report.join is not None and not report.told:
                report.told = True
                shared.out.append(Send(peer, shared.in_force.install()))
        return all(shared.reports[peer].installed for peer in newcomers)

    def dismiss_unwanted(self, wanted: Set[Peer], present: Set[Peer]) -> None:
        """Take back what an earlier wish had begun: those who are neither in a view nor wanted in one go."""
        for peer in sorted(self._shared.reports.keys() - wanted - present - self._shared.leaving):
            self._roster.dismiss(peer)

    def overdue(self) -> list[Peer]:
        """Return who is not up in time, once the time is over."""
        if self.deadline_ms is None or self._shared.now_ms <= self.deadline_ms:
            return []
        self.deadline_ms = None
        return sorted(peer for peer, report in self._shared.reports.items() if not report.installed)
