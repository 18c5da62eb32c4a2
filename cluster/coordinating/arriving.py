"""Slices join: at the very beginning, as newcomers, in place of dead ones, or again after the coordinator's crash."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cluster.config import Config
from cluster.coordinating.records import Report, State
from cluster.coordinating.recovering import Recovering
from cluster.coordinating.roster import Roster
from cluster.coordinating.shared import Shared
from cluster.coordinating.steps import Steps
from cluster.coordinating.wishes import sizes_of
from cluster.messages import Installed, Join, Peer, Send, Stop
from cluster.view import first_view
from cluster.wish import PLURALS, slots_of


def expected_slots(config: Config) -> tuple[Peer, ...]:
    """Return the slots that the configuration asks for, by layer and number."""
    return tuple(Peer(PLURALS[plural], slot) for plural, size in sizes_of(config).items() for slot in range(size))


class Arriving:
    """Sees to it that who joins is one that was asked for, and to what waits for it.

    _expected: the slots that the first view is to have; those of an earlier life's view if there is one.
    """

    def __init__(self, shared: Shared, config: Config, roster: Roster, steps: Steps, recovering: Recovering) -> None:
        self._shared = shared
        self._roster = roster
        self._steps = steps
        self._recovering = recovering
        self._configured = sizes_of(config)
        self._expected: Collection[Peer] = set(expected_slots(config))
        if shared.view is not None:
            self._expected = {member.peer for member in shared.view.members}
            for member in (*shared.view.members, *shared.memory.leaving):
                shared.reports[member.peer] = Report(member.incarnation, 0, connected=False)

    def start(self, *, cold: bool) -> None:
        """Have processes started, unless they run on from an earlier life. cold: none does."""
        shared = self._shared
        if shared.state is State.GATHERING:
            shared.memory.configured = self._configured
            self._roster.spawn(sorted(self._expected))
        elif cold:
            shared.state = State.SERVING
            shared.memory.doors.clear()
            self._steps.want_what_is("the cluster was stopped")
            self._recovering.replace(list(shared.reports), "the cluster was stopped")

    def join(self, peer: Peer, join: Join) -> None:
        """A process says that it plays a slot."""
        shared = self._shared
        report = shared.reports.get(peer)
        if report is None and shared.state in (State.RESUMING, State.SERVING):
            # A newcomer that an earlier life has had started; others may know it. If it is not needed it is dismissed.
            report = shared.reports[peer] = Report(join.incarnation, shared.now_ms)
            if shared.state is State.SERVING:
                # It has not heard how that ended for which it was started, and may hold some of it.
                report.join = join
                self._roster.dismiss(peer)
                return
        if report is None or report.incarnation != join.incarnation:
            shared.out.append(Stop(peer, join.incarnation))
            return
        if shared.recovery is not None and peer in shared.recovery.retries:
            shared.out.append(Stop(peer, join.incarnation))  # given up already: it was told to end
            return
        report.join = join
        report.heard_ms = shared.now_ms
        report.connected = True
        if join.client_address:
            shared.memory.doors[peer.slot] = join.client_address  # on disk before it is in a view
        if shared.state is State.GATHERING:
            self._begin_if_all_are_there()
        elif shared.state is State.RESUMING:
            report.installed = shared.in_view(peer)
            self.resume()
        elif not report.installed and peer in shared.leaving:
            # A leaver that was not waited for.
            report.join = None
            shared.out.append(Stop(peer, join.incarnation))
        elif shared.recovery is not None:
            self._recovering.connect()
        else:
            self._steps.go_on()

    def _begin_if_all_are_there(self) -> None:
        shared = self._shared
        reports = sorted(shared.reports.items())
        if any(report.join is None for _, report in reports):
            return
        view = shared.view = first_view(report.member(peer) for peer, report in reports)
        install = shared.memory.view = view.install()
        shared.memory.epoch = view.epoch
        shared.memory.wanted = slots_of(view)
        shared.remember()
        shared.state = State.INSTALLING
        shared.out += [Send(peer, install) for peer, _ in reports]

    def installed(self, peer: Peer, message: Installed) -> None:
        """A slice has its lanes and serves the view that it was sent."""
        shared = self._shared
        shared.reports[peer].installed = True
        if shared.state is State.INSTALLING:
            if all(report.installed for report in shared.reports.values()):
                shared.state = State.SERVING
                self._roster.let_in(shared.in_force.connection_points)
        elif shared.recovery is not None:
            self._recovering.answered(peer, message)
        else:
            self._steps.go_on()

    def resume(self) -> None:
        """All roles have come again: bring to its end what the earlier life had begun.

        Leavers are waited for as well, as they may owe something; but not for longer than until they count as lost.
        """
        shared = self._shared
        view = shared.in_force
        for report in shared.reports.values():
            if report.join is None and not report.dead and not shared.silent(report):
                return
        shared.state = State.SERVING
        undecided = self._steps.undecided
        buried = self._recovering.buried()
        dead = [
            peer
            for peer, report in sorted(shared.reports.items())
            if shared.in_view(peer) and self._is_dead(peer, report, buried)
        ]
        if dead or buried:
            if undecided:
                self._steps.abandon("the coordinator was started anew")
            self._recovering.replace(dead, "it did not come again")
            return
        # Newcomers may know of a view that was not decided; one that was has none that are not in it.
        peers = tuple(
            peer
            for peer, report in sorted(shared.reports.items())
            if report.join is not None and not report.left and (undecided or shared.in_view(peer))
        )
        self._roster.let_in(view.connection_points)
        self._steps.take_up(peers, "the coordinator was started anew")

    def _is_dead(self, peer: Peer, report: Report, buried: Mapping[Peer, int]) -> bool:
        """Tell whether another incarnation is to take the slot. Of leavers that do not come again none does."""
        if report.join is None:
            return peer in self._expected
        return report.dead or report.incarnation <= buried.get(peer, 0)
