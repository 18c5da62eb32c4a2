"""Ways to break the protocol of a view change; see `mutants.py`.

The list is that of Kittiwake's plan of proof: what the E-SilboPS paper's text allows when it is taken literally, what
each rule of the protocol is for, and what the coordinator's log is for.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from cluster import moving
from cluster.access_point import AccessPoint
from cluster.columns import u16
from cluster.connection_point import ConnectionPoint
from cluster.coordinating.steps import Steps
from cluster.exit_point import ExitPoint, Share
from cluster.handover import Handover
from cluster.leftovers import Leftovers
from cluster.matcher import Matcher
from cluster.messages import (
    MATCHER,
    ApplyChanges,
    Ended,
    GroupCopy,
    Instruction,
    Peer,
    Persist,
    PublisherState,
    PublisherStates,
    Ready,
    Send,
    SubscriptionChange,
    Switch,
)
from cluster.moving import Moving
from cluster.transition import Phase, Transition
from cluster.view import View, key_group
from tests.sim.mutants import Replace, mutant

# Matchers: copying ------------------------------------------------------------------------------------------------


@mutant("the copy is complete with the first access point's Mark, not the last one's", seeds=40, scenario="matchers")
def copy_ends_at_the_first_mark(replace: Replace) -> None:
    original = Moving.mark

    def mark(self: Moving, access_point: int) -> None:
        original(self, access_point)
        self._unmarked.clear()

    replace(Moving, "mark", mark)


@mutant(
    "changes that belong to the snapshot and come after it has begun are not recorded", seeds=40, scenario="matchers"
)
def no_channel_recording(replace: Replace) -> None:
    replace(Moving, "changed", lambda self, access_point, change, group: None)


@mutant("a removal is forgotten, so that a late copy brings the subscription back", seeds=80, scenario="matchers")
def tombstone_dropped(replace: Replace) -> None:
    original = Matcher._apply

    def apply(self: Matcher, change: SubscriptionChange, group: int) -> None:
        original(self, change, group)
        self._removed.clear()

    replace(Matcher, "_apply", apply)


@mutant("the last word on a subscription is the one that came last, not the newest", seeds=80, scenario="matchers")
def version_ignored(replace: Replace) -> None:
    original = Matcher._apply

    def apply(self: Matcher, change: SubscriptionChange, group: int) -> None:
        row = self.table.rows_of(group).get(change.subscription)
        if row is not None and row.change > change.change:
            changed = SubscriptionChange(row.change + 1, change.subscription, change.normal_form)
            original(self, changed, group)
            return
        original(self, change, group)

    replace(Matcher, "_apply", apply)


@mutant("a matcher is ready before it has heard that nothing more comes", seeds=80, scenario="matchers")
def ready_without_the_end(replace: Replace) -> None:
    def finish(self: Moving, out: list[Instruction]) -> None:
        if self._unmarked or self._said:
            return
        if all(departure.walked for departure in self._departures.values()):
            self._said = True
            out.append(Send(Peer("coordinator", 0), Ready(self.after.epoch, self.entries, self.bytes)))

    replace(Moving, "_finish", finish)


@mutant(
    "entries are lost on their way, and nobody compares what was sent with what came", seeds=10, scenario="matchers"
)
def no_digest(replace: Replace) -> None:
    original = Moving.arrived

    def arrived(self: Moving, source: int, message: GroupCopy) -> None:
        original(self, source, message)
        entries = self._arrivals[source].entries
        if len(entries) > 1:
            entries.pop()

    original_finish = Moving._finish

    def finish(self: Moving, out: list[Instruction]) -> None:
        for arrival in self._arrivals.values():
            if arrival.end is not None:
                arrival.end = moving._end(self.after.epoch, arrival.tallies)
        original_finish(self, out)

    replace(Moving, "arrived", arrived)
    replace(Moving, "_finish", finish)


@mutant("a source sends without regard to what the target has taken", seeds=40, scenario="matchers")
def credit_ignored(replace: Replace) -> None:
    original = Moving._walk

    def walk(self: Moving, target: int, departure: Any, left: int, out: list[Instruction]) -> int:
        flight, departure.flight = departure.flight, -(1 << 40)
        left = original(self, target, departure, left, out)
        departure.flight += flight + (1 << 40)
        return left

    replace(Moving, "_walk", walk)


@mutant("a late copy of an aborted view change is taken for one of the present", seeds=220, scenario="matchers")
def fence_removed(replace: Replace) -> None:
    original = Matcher._received

    def received(self: Matcher, peer: Peer, message: Any) -> None:
        if isinstance(message, GroupCopy | ApplyChanges) and self._moving is None:
            entries = message.entries if isinstance(message, GroupCopy) else message.changes
            for entry in entries:
                self._apply(entry, key_group(entry.subscription))
        original(self, peer, message)

    replace(Matcher, "_received", received)


# Matchers: two epochs in one index --------------------------------------------------------------------------------


@mutant("both owners of a group answer for it while it moves", seeds=10, scenario="matchers")
def validity_ignored(replace: Replace) -> None:
    replace(Matcher, "_only_mine", lambda self, epoch, hits: hits)


@mutant("a matcher answers for the next view from the first access point's Switch on", seeds=30, scenario="matchers")
def swap_on_the_first_marker(replace: Replace) -> None:
    original = Matcher._only_mine

    def only_mine(self: Matcher, epoch: int, hits: Any) -> Any:
        moving, view = self._moving, self._view
        if moving is not None and view is not None and self._unswitched != set(view.access_points):
            return original(self, moving.after.epoch, hits)
        return original(self, epoch, hits)

    replace(Matcher, "_only_mine", only_mine)


@mutant("a matcher keeps what has moved away", seeds=10, scenario="matchers")
def nothing_is_swept(replace: Replace) -> None:
    original = Matcher._forget_next
    replace(Matcher, "_forget_next", lambda self, foreign: original(self, {}))


@mutant("what is still to be swept out makes a copy of it that comes back outdated", seeds=200, scenario="matchers")
def swept_still_counts(replace: Replace) -> None:
    original = Matcher._apply

    def apply(self: Matcher, change: SubscriptionChange, group: int) -> None:
        row = self.table.rows_of(group).get(change.subscription)
        if row is None or change.change > row.change:
            original(self, change, group)

    replace(Matcher, "_apply", apply)


@mutant("a matcher is ready before what is in the way is swept out", seeds=0, scenario="matchers")
def ready_before_the_sweep(replace: Replace) -> None:
    original = Moving._finish

    def finish(self: Moving, out: list[Instruction]) -> None:
        leftovers, self._leftovers = self._leftovers, Leftovers()
        original(self, out)
        self._leftovers = leftovers

    replace(Moving, "_finish", finish)


@mutant("what is still to be swept out after a recovery is copied", seeds=0, scenario="crash_all")
def swept_is_copied(replace: Replace) -> None:
    original = Moving._walk

    def walk(self: Moving, target: int, departure: Any, left: int, out: list[Instruction]) -> int:
        leftovers, self._leftovers = self._leftovers, Leftovers()
        left = original(self, target, departure, left, out)
        self._leftovers = leftovers
        return left

    replace(Moving, "_walk", walk)


@mutant("a change for a group that has moved away is applied at its former owner", seeds=280, scenario="matchers")
def late_change_applied(replace: Replace) -> None:
    replace(Matcher, "_owns", lambda self, group: True)


# The access point -------------------------------------------------------------------------------------------------


@mutant("behind its Mark an access point still tells the former owner alone", seeds=10, scenario="matchers")
def no_dual_write(replace: Replace) -> None:
    original = AccessPoint._route

    def route(self: AccessPoint, connection_point: Peer, changes: list[SubscriptionChange]) -> None:
        marked, self._marked = self._marked, False
        original(self, connection_point, changes)
        self._marked = marked

    replace(AccessPoint, "_route", route)


@mutant("an access point tells the new owner alone once it has switched itself", seeds=0, scenario="matchers")
def dual_write_ends_at_switch(replace: Replace) -> None:
    original = AccessPoint._route

    def route(self: AccessPoint, connection_point: Peer, changes: list[SubscriptionChange]) -> None:
        view = self._view
        if self._switched and self._next is not None:
            self._view = self._next
        original(self, connection_point, changes)
        self._view = view

    replace(AccessPoint, "_route", route)


@mutant("a subscribe is confirmed when one of its two owners has it", seeds=200, scenario="matchers")
def confirmed_by_one_owner(replace: Replace) -> None:
    original = AccessPoint._applied

    def applied(self: AccessPoint, matcher: int, connection_point: int, changes: list[int]) -> None:
        for change in changes:
            waits = self._unanswered.get((connection_point, change))
            if waits is not None:
                waits.intersection_update({matcher})
        original(self, matcher, connection_point, changes)

    replace(AccessPoint, "_applied", applied)


@mutant("the Switch overtakes the batch that was being gathered", seeds=40, scenario="matchers")
def switch_overtakes_batch(replace: Replace) -> None:
    original = AccessPoint._switch

    def switch(self: AccessPoint) -> None:
        gathered, self._gathered = self._gathered, []
        original(self)
        self._gathered = gathered

    replace(AccessPoint, "_switch", switch)


@mutant("an access point switches with the first connection point, not the last", seeds=20, scenario="access_points")
def switch_with_the_first_connection_point(replace: Replace) -> None:
    original = AccessPoint._switch_of

    def switch_of(self: AccessPoint, connection_point: Peer, epoch: int) -> None:
        self._awaited &= {connection_point.slot}
        original(self, connection_point, epoch)

    replace(AccessPoint, "_switch_of", switch_of)


@mutant("a new view's access points take over with no Switch on the lanes there", seeds=10, scenario="access_points")
def connection_point_does_not_switch(replace: Replace) -> None:
    original = ConnectionPoint._commit

    def commit(self: ConnectionPoint, epoch: int) -> None:
        original(self, epoch)
        out = self._shared.out
        self._shared.out = [one for one in out if not (isinstance(one, Send) and isinstance(one.message, Switch))]

    replace(ConnectionPoint, "_commit", commit)


# The exit point ---------------------------------------------------------------------------------------------------


@mutant("how many answers a publication needs is read from the view, not from its stamp", seeds=10, scenario="matchers")
def threshold_from_the_view(replace: Replace) -> None:
    original = ExitPoint._advance

    def advance(self: ExitPoint, key: tuple[int, int]) -> None:
        view = self._next or self._view
        assert view is not None, "no view"
        for share in self._streams[key].shares.values():
            share.expect = frozenset(view.matchers)
        original(self, key)

    replace(ExitPoint, "_advance", advance)


@mutant("answers are counted: whoever answers, it is the number that counts", seeds=20, scenario="matchers")
def count_instead_of_set(replace: Replace) -> None:
    original = ExitPoint._advance

    def advance(self: ExitPoint, key: tuple[int, int]) -> None:
        view = self._view
        assert view is not None, "no view"
        for share in self._streams[key].shares.values():
            if len(share.results) >= len(view.matchers):
                share.expect = frozenset(share.results)
        original(self, key)

    replace(ExitPoint, "_advance", advance)


@mutant("a publication is released as soon as it is complete, whatever its epoch and place", seeds=110)
def release_by_completion(replace: Replace) -> None:
    def join(self: ExitPoint, matcher: Peer, result: Any) -> None:
        stream = self._streams[result.epoch, result.access_point]
        share = stream.shares.get(result.sequence)
        if share is None:
            count = sum(run.count for run in result.runs)
            share = stream.shares[result.sequence] = Share(frozenset(result.expect), result.runs, count)
        share.results[matcher.slot] = result
        if len(share.results) == len(share.expect):
            del stream.shares[result.sequence]
            stream.next += share.count
            self._release(share)
        self._go_on()

    replace(ExitPoint, "_join", join)


@mutant("a publication of the next epoch does not wait for those of the former one", seeds=110)
def release_by_arrival(replace: Replace) -> None:
    replace(ExitPoint, "_open", lambda self, key: True)


@mutant("with new access points, each stream waits for its own former one only", seeds=140, scenario="access_points")
def gate_by_access_point(replace: Replace) -> None:
    def opened(self: ExitPoint, key: tuple[int, int]) -> bool:
        epoch, access_point = key
        assert self._view is not None, "no view"
        if epoch == self._view.epoch or access_point not in self._view.access_points:
            return True
        return self._over(self._view.epoch, access_point)

    replace(ExitPoint, "_open", opened)


@mutant("an exit point forgets what it knew of publishers that move away", seeds=40, scenario="exit_points")
def nothing_handed_over(replace: Replace) -> None:
    original = Handover.arrived

    def arrived(self: Handover, slot: int, message: PublisherStates) -> Any:
        states = [PublisherState(one.publisher, one.instance, 0, one.pending) for one in message.states]
        return original(self, slot, PublisherStates(message.epoch, states, message.last))

    replace(Handover, "arrived", arrived)


@mutant("what changed after the copy is not handed over", seeds=80, scenario="exit_points")
def handed_over_too_early(replace: Replace) -> None:
    original = Handover.arrived

    def arrived(self: Handover, slot: int, message: PublisherStates) -> Any:
        known = self._coming
        states = [
            one if (one.publisher, one.instance) not in known or not one.released else _stale(one, known)
            for one in message.states
        ]
        return original(self, slot, PublisherStates(message.epoch, states, message.last))

    def _stale(state: PublisherState, known: Any) -> PublisherState:
        released = known[state.publisher, state.instance].released
        return PublisherState(state.publisher, state.instance, released, state.pending)

    replace(Handover, "arrived", arrived)


# Since connection points know what comes late, only a refusal that is told late shows it: 2 of 520 seeds.
@mutant(
    "an exit point hands over before the connection points have taken what it sent", seeds=0, scenario="exit_points"
)
def no_hand_over_hold(replace: Replace) -> None:
    original = Handover.release

    def release(self: Handover, out: list[Instruction]) -> None:
        original(self, out)
        self._hand_over(out)

    replace(Handover, "release", release)


@mutant("an exit point leaves though former publications of it are not acknowledged", seeds=10, scenario="exit_points")
def exit_point_leaves_early(replace: Replace) -> None:
    replace(Handover, "finished", property(lambda self: self.released))


@mutant(
    "a follower acknowledges without the runs that its predecessor still waits for", seeds=10, scenario="exit_points"
)
def pending_not_handed_over(replace: Replace) -> None:
    original = Handover._part

    def part(self: Handover, out: list[Instruction]) -> None:
        original(self, out)
        for place, one in enumerate(out):
            if isinstance(one, Send) and isinstance(one.message, PublisherStates):
                states = [
                    PublisherState(state.publisher, state.instance, state.released, 0) for state in one.message.states
                ]
                out[place] = Send(one.peer, PublisherStates(one.message.epoch, states, one.message.last))
        for publisher in self._departed.values():
            publisher.pending = deque()

    replace(Handover, "_part", part)


# The coordinator --------------------------------------------------------------------------------------------------


@mutant("the decision is announced and not written down", seeds=60, scenario="coordinator")
def commit_not_persisted(replace: Replace) -> None:
    original = Steps._decide

    def decide(self: Steps, transition: Transition) -> None:
        out = self._shared.out
        before = len(out)
        original(self, transition)
        out[before:] = [one for one in out[before:] if not isinstance(one, Persist)]

    replace(Steps, "_decide", decide)


@mutant("the change is decided when the first matcher is ready", seeds=10, scenario="matchers")
def decided_by_the_first(replace: Replace) -> None:
    original = Transition.answered

    def answered(self: Transition, peer: Peer, message: Any) -> Any:
        if self.phase is Phase.COPYING and isinstance(message, Ready) and peer.layer == MATCHER:
            self.waiting = {peer}
        return original(self, peer, message)

    replace(Transition, "answered", answered)


@mutant("the former view is retired when the first role has ended it", seeds=10, scenario="matchers")
def retired_by_the_first(replace: Replace) -> None:
    original = Transition.answered

    def answered(self: Transition, peer: Peer, message: Any) -> Any:
        if self.phase is Phase.SWITCHING and isinstance(message, Ended):
            self.waiting = {peer}
        return original(self, peer, message)

    replace(Transition, "answered", answered)


@mutant("groups are dealt anew instead of moving as few as possible", seeds=60, scenario="matchers")
def more_moves_than_needed(replace: Replace) -> None:
    import cluster.coordinating.steps as module
    from cluster.view import even_owners

    replace(module, "reassign", lambda before, matchers: even_owners(sorted(matchers, reverse=False)))  # type: ignore[arg-type]


@mutant("a role goes on with the view that was aborted", seeds=10, scenario="matchers")
def abort_ignored(replace: Replace) -> None:
    original = AccessPoint._abort

    def abort(self: AccessPoint, epoch: int) -> None:
        after = self._next
        original(self, epoch)
        if after is not None and isinstance(self._view, View):
            self._view = View(self._view.epoch, self._view.members, _mixed(self._view, after))

    def _mixed(view: View, after: View) -> bytes:
        known = set(view.matchers)
        owners = [
            then if then in known else now
            for now, then in zip(u16(view.owners).tolist(), u16(after.owners).tolist(), strict=True)
        ]
        import numpy as np

        from cluster.columns import U16

        return np.array(owners, U16).tobytes()

    replace(AccessPoint, "_abort", abort)
