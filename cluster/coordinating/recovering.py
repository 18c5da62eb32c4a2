"""Slices have died: others take their slots, and everybody serves the view with them. The phases: `recovery.py`."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.config import Config
from cluster.coordinating.leavers import Leavers
from cluster.coordinating.records import State
from cluster.coordinating.roster import Roster
from cluster.coordinating.shared import Shared
from cluster.coordinating.steps import Steps
from cluster.coordinating.wishes import Wishes, sizes_of
from cluster.messages import CONNECTION_POINT, Epoch, Installed, Kill, Peer, Rebuilt, Resume, Send, Stop
from cluster.questions import Questions
from cluster.recovery import Phase, Recovery
from cluster.view import View

RECOVERIES_SHOWN = 20


class Recovering:
    """Brings dead slices back.

    recoveries: those that are over, for people, the newest last. recovered: how many there were.

    If the configuration asks for other sizes than when the cluster was last started, a wish for them is made as soon as
    everybody is back from that.
    """

    def __init__(
        self,
        shared: Shared,
        config: Config,
        roster: Roster,
        questions: Questions,
        leavers: Leavers,
        steps: Steps,
        wishes: Wishes,
    ) -> None:
        self._shared = shared
        self._writes = config.output.path is not None
        self._roster = roster
        self._questions = questions
        self._leavers = leavers
        self._steps = steps
        self._wishes = wishes
        self.recoveries: list[dict[str, object]] = []
        self.recovered = 0
        self._configured = sizes_of(config)

    def buried(self) -> dict[Peer, int]:
        """Return who has died by what is on disk, and the last incarnation that has."""
        return {Peer(layer, slot): incarnation for layer, slot, incarnation in self._shared.memory.replaced}

    def replace(self, dead: Sequence[Peer], reason: str) -> None:
        """These are no more: end what is left of them, and have others take their slots."""
        shared = self._shared
        view = shared.in_force
        recovery = shared.recovery
        if recovery is None:
            recovery = shared.recovery = Recovery(shared.now_ms, self.buried(), self._writes)
        self._steps.cut_off(reason)
        for peer in [peer for peer in sorted(shared.reports) if not shared.in_view(peer)]:
            self._roster.dismiss(peer)
        recovery.died({peer: shared.reports[peer].incarnation for peer in dead})
        # On disk before anybody is told: whoever is fenced by some must not be taken for alive after a crash of ours.
        shared.memory.replaced = [(*peer, incarnation) for peer, incarnation in sorted(recovery.replaced.items())]
        shared.remember()
        for peer in dead:
            self._bury(peer)
        shared.memory.leaving = [member for member in shared.memory.leaving if member.peer not in dead]
        again = [peer for peer in dead if view.member(peer) is not None]
        for peer in set(dead) - set(again):
            del shared.reports[peer]
        self._roster.spawn(again)
        self.connect()

    def _bury(self, peer: Peer) -> None:
        """Nobody hears anything of this incarnation any more."""
        shared = self._shared
        report = shared.reports[peer]
        shared.out += self._questions.lost(peer)
        if report.join is not None:
            member = report.member(peer)
        else:
            member = next(one for one in (*shared.in_force.members, *shared.memory.leaving) if one.peer == peer)
        if peer.layer == CONNECTION_POINT:
            shared.sessions.forget(peer.slot)
        self._roster.let_go(member)
        if report.join is None:
            shared.out.append(Stop(peer, report.incarnation))
        else:
            shared.out.append(Kill(peer, report.incarnation, report.join.host, report.join.pid))
        report.join = None

    def connect(self) -> None:
        """Once all that have died are back: have everybody serve the view with them."""
        shared = self._shared
        recovery, before = shared.recovery, shared.in_force
        assert recovery is not None, "nothing to recover from"
        peers = [member.peer for member in before.members]
        if recovery.phase is not Phase.STARTING or any(shared.reports[peer].join is None for peer in peers):
            return
        members = tuple(shared.reports[peer].member(peer) for peer in peers)
        view = shared.view = View(Epoch(shared.memory.epoch + 1), members, before.owners)
        shared.memory.epoch = view.epoch
        shared.memory.view = view.install()
        shared.remember()
        recovery.now_ms = shared.now_ms
        leavers = [member.peer for member in shared.memory.leaving if shared.reports[member.peer].join is not None]
        shared.out += recovery.connect(view, [*peers, *leavers])

    def answered(self, peer: Peer, message: Installed | Rebuilt) -> None:
        """Take what a slice answers to the recovery that is under way; there may be none."""
        shared = self._shared
        recovery = shared.recovery
        if recovery is None:
            return
        recovery.now_ms = shared.now_ms
        if not recovery.answered(peer, message):
            return
        if recovery.phase is Phase.CONNECTING:
            shared.out += recovery.rebuild()
        else:
            self._over(recovery)

    def _over(self, recovery: Recovery) -> None:
        """All serve the view, and what was lost has come again: clients' traffic goes on."""
        shared = self._shared
        assert recovery.view is not None, "recovered without a view"
        recovery.end()
        shared.recovery = None
        self.recovered += 1
        shared.ledger.recovery(recovery.phases)
        shown: dict[str, object] = {
            "replaced": [str(one) for one in sorted(recovery.replaced)],
            "phases_ms": recovery.phases,
        }
        self.recoveries = [*self.recoveries, shown][-RECOVERIES_SHOWN:]
        shared.memory.replaced = []
        shared.remember()
        doors = recovery.view.connection_points
        shared.out += [Send(Peer(CONNECTION_POINT, slot), Resume(recovery.view.epoch)) for slot in doors]
        self._roster.let_in([slot for slot in doors if not shared.reports[Peer(CONNECTION_POINT, slot)].moving])
        self._leavers.see_off()
        if self._configured != shared.memory.configured:
            self._wishes.scale_as_configured(self._configured)
        self._steps.go_on()

    def watch(self) -> None:
        """Time passes: starts that take too long have failed, and those that failed are tried again."""
        shared = self._shared
        recovery = shared.recovery
        if recovery is None or shared.state is not State.SERVING:
            return
        recovery.now_ms = shared.now_ms
        limit_ms = shared.settings.start_timeout_ms
        for peer in sorted(shared.reports.keys() & (recovery.replaced.keys() - recovery.retries.keys())):
            report = shared.reports[peer]
            if report.join is None and shared.now_ms - report.heard_ms > limit_ms:
                shared.out.append(Stop(peer, report.incarnation))
                recovery.failed(peer, f"not up in {limit_ms} ms")
        due = recovery.due()
        if due:
            self._roster.spawn(due)
