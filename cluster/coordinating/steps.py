"""One view after another, to where the wish wants; after each the coordinator looks anew.

go_on     newcomers are brought up; then a view change begins, or clients of leavers are asked to move
answered  a phase of it has ended: the next one; the decision is on disk before anybody hears of it
give_up   it cannot be done: the cluster stays as it is, or as a decided view change makes it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.assignment import reassign
from cluster.coordinating.leavers import Leavers
from cluster.coordinating.newcomers import Newcomers
from cluster.coordinating.operations import Operations
from cluster.coordinating.records import State
from cluster.coordinating.roster import Roster
from cluster.coordinating.shared import Shared
from cluster.coordinating.waves import Waves
from cluster.messages import MATCHER, Epoch, Failed, Peer
from cluster.transition import Phase, Transition
from cluster.view import View
from cluster.wish import next_view, slots_of


class Steps:
    """Changes the view. _due: the next step is to be taken on the next Tick."""

    def __init__(
        self,
        shared: Shared,
        roster: Roster,
        operations: Operations,
        newcomers: Newcomers,
        leavers: Leavers,
        waves: Waves,
    ) -> None:
        self._shared = shared
        self._roster = roster
        self._operations = operations
        self._newcomers = newcomers
        self._leavers = leavers
        self._waves = waves
        self._due = False

    # Beginning ---------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Take the next step towards what is wanted, if one can be taken now."""
        shared = self._shared
        if shared.state is not State.SERVING or shared.view is None:
            return
        if shared.transition is not None or shared.recovery is not None:
            return
        wanted = {Peer(layer, slot) for layer, some in shared.memory.wanted.items() for slot in some}
        present = {member.peer for member in shared.view.members}
        self._newcomers.dismiss_unwanted(wanted, present)
        self._leavers.stay(wanted)
        if not self._operations.running:
            return  # nobody wants anything: after an abort the groups stay where they are
        newcomers = sorted(wanted - present)
        if not self._newcomers.ready(newcomers):
            return
        leavers = sorted(present - wanted)
        owners = reassign(shared.view.owners, shared.memory.wanted[MATCHER])
        if not newcomers and not leavers and owners == shared.view.owners:
            self._operations.end("done")
            return
        view = self._next_view(newcomers, leavers, owners)
        if view is not None:
            self._begin(view)

    def _next_view(self, newcomers: Sequence[Peer], leavers: Sequence[Peer], owners: bytes) -> View | None:
        """Return the view that comes next; None while clients of leavers have to move first."""
        shared = self._shared
        before = shared.in_force
        full = self._leavers.full(leavers)
        view = next_view(
            before,
            shared.memory.epoch + 1,
            shared.memory.wanted,
            owners,
            [shared.reports[peer].member(peer) for peer in newcomers],
            full,
            self._waves.groups(shared.memory.strategy),
        )
        if view is not None:
            return view
        self._leavers.move_clients(full)
        if not self._leavers.take_moved(full):
            return None
        # A change of nothing: at its end what was underway for those who have moved has come.
        return View(Epoch(shared.memory.epoch + 1), before.members, before.owners)

    def _begin(self, view: View) -> None:
        shared = self._shared
        before = shared.in_force
        self._newcomers.deadline_ms = None
        shared.memory.epoch = view.epoch
        shared.remember()
        peers = tuple(sorted({member.peer for member in (*before.members, *view.members)}))
        self._operations.steps_for()
        shared.transition = Transition(before, view, peers, shared.memory.strategy == "stop_swap", shared.now_ms)
        shared.out += shared.transition.start()

    def take_up(self, peers: tuple[Peer, ...], reason: str) -> None:
        """Bring to its end the view change that an earlier life has left, with these: one that was decided goes on,
        any other is aborted. reason: why."""
        shared = self._shared
        before = after = shared.in_force
        undecided = self.undecided
        if undecided:
            self.abandon(reason)
            after = View(Epoch(shared.memory.epoch), before.members, before.owners)
        shared.transition = Transition(before, after, peers, False, shared.now_ms)
        shared.out += shared.transition.abort(reason, ()) if undecided else shared.transition.commit()

    @property
    def undecided(self) -> bool:
        """Whether an earlier life has left a view change that was not decided."""
        return self._shared.memory.epoch > self._shared.in_force.epoch

    def abandon(self, reason: str) -> None:
        """The step that an earlier life was at is not taken, and what it was for comes to nothing."""
        self._operations.steps_for()
        self.want_what_is(reason)

    # Phases ------------------------------------------------------------------------------------------------------

    def answered(self, peer: Peer, message: Any) -> None:
        """Take what a slice answers to the view change that is under way; there may be none."""
        shared = self._shared
        transition = shared.transition
        if transition is None:
            return
        transition.now_ms = shared.now_ms
        self._ended(transition, transition.answered(peer, message))

    def left(self, peer: Peer) -> None:
        """A slice owes nothing any more, and has no part in what follows. One that had left an earlier view may be
        among those with whom a later life of the coordinator goes on."""
        transition = self._shared.transition
        if transition is not None:
            transition.now_ms = self._shared.now_ms
            self._ended(transition, transition.without(peer))

    def _ended(self, transition: Transition, phase: Phase | None) -> None:
        shared = self._shared
        match phase:
            case Phase.PREPARING:
                shared.out += transition.copy()
            case Phase.COPYING:
                self._decide(transition)
            case Phase.SWITCHING:
                shared.out += transition.retire()
            case Phase.RETIRING | Phase.ABORTING:
                self._over(transition)
            case _:
                pass

    def _decide(self, transition: Transition) -> None:
        """Nothing stands against it: from here the new view is the one in force."""
        shared = self._shared
        members = {member.peer for member in transition.after.members}
        leavers = [member for member in transition.before.members if member.peer not in members]
        shared.memory.view = transition.after.install()
        shared.memory.leaving = [*shared.memory.leaving, *leavers]
        self._operations.steps_for()  # a later wish has been merged with it
        if not self._operations.account(transition, committed=True):
            shared.remember()
        shared.out += transition.commit()
        former, shared.view = shared.in_force, transition.after
        self._roster.let_in([slot for slot in shared.view.connection_points if slot not in former.connection_points])

    def _over(self, transition: Transition) -> None:
        """A step has come to its end."""
        shared = self._shared
        shared.transition = None
        committed = transition.phase is Phase.COMMITTED
        self._enter(transition, committed=committed)
        self._leavers.forget_stopped()
        self._leavers.see_off()
        self._waves.over(transition)
        if not committed:
            self.go_on()  # to where a wish wants that came meanwhile
            return
        self._due = self._waves.pause and shared.memory.strategy == "waves" and transition.groups > 0
        if not self._due:
            self.go_on()

    def _enter(self, transition: Transition, *, committed: bool) -> None:
        """Have what became of it in the history and among the metrics; not if it only went on for an earlier life."""
        if transition.before is transition.after:
            return
        self._operations.account(transition, committed=committed)
        moved = (transition.groups, transition.entries, transition.bytes)
        self._shared.ledger.transition(transition.phases, *moved, committed=committed, over=transition.over)

    # Giving up ---------------------------------------------------------------------------------------------------

    def failed(self, peer: Peer, message: Failed) -> None:
        """A slice says that it cannot do its part."""
        transition = self._shared.transition
        reason = None if transition is None else transition.failed(peer, message)
        if reason is not None:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """What is under way cannot be done; a view that was to come does not, and newcomers are not needed."""
        shared = self._shared
        self._operations.end("aborted", reason)
        transition = shared.transition
        if transition is not None and not transition.decided and transition.phase is not Phase.ABORTING:
            gone = [peer for peer, report in shared.reports.items() if shared.lost(report)]
            shared.out += transition.abort(reason, gone)
        self._stay()
        if transition is None:
            self.go_on()
        elif transition.over:
            self._over(transition)

    def want_what_is(self, reason: str) -> None:
        """There is nowhere to go: the cluster stays as it is, or as the step that is decided makes it."""
        self._operations.end("aborted", reason)
        self._stay()

    def _stay(self) -> None:
        shared = self._shared
        transition = shared.transition
        view = shared.in_force if transition is None or not transition.decided else transition.after
        shared.memory.wanted = slots_of(view)
        self._newcomers.deadline_ms = None
        shared.remember()

    def cut_off(self, reason: str) -> None:
        """Slices have died: a view change that is not decided is given up, and none is waited for any more, nor are
        newcomers: they are started anew when all are back."""
        self._newcomers.deadline_ms = None
        transition = self._shared.transition
        if transition is not None and not transition.decided and transition.phase is not Phase.ABORTING:
            self.give_up(reason)
        if self._shared.transition is not None:
            transition, self._shared.transition = self._shared.transition, None
            self._enter(transition, committed=transition.decided)

    # Time --------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """See to it that nothing waits for newcomers that are lost, nor for ever."""
        shared = self._shared
        transition = shared.transition
        if transition is None:
            reports = shared.reports.items()
            newcomers = [peer for peer, report in reports if shared.lost(report) and not shared.in_view(peer)]
            if newcomers:
                self.give_up(f"{', '.join(map(str, sorted(newcomers)))} lost")
            return
        lost = [peer for peer in transition.peers if peer in shared.reports and shared.lost(shared.reports[peer])]
        if transition.phase is Phase.ABORTING:
            for peer in lost:
                self._ended(transition, transition.without(peer))
        elif not transition.decided:
            limit_ms = shared.settings.prepare_timeout_ms
            if lost:
                self.give_up(f"{', '.join(map(str, lost))} lost")
            elif transition.now_ms - transition.started_ms > limit_ms:
                waits = ", ".join(map(str, sorted(transition.waiting)))
                self.give_up(f"no answer within {limit_ms} ms from {waits}")

    def take_due(self) -> None:
        """Time has passed since the last step."""
        if self._due:
            self._due = False
            self.go_on()
