"""Ways to break the recovery from a death; see `mutants.py`.

Each takes away one rule of `cluster/messages/recovery.py`: what is held until it is acknowledged, what is void, what
is sent again and when, what is known to be a double, and what the coordinator remembers of it. Those with 0 seeds were
seen by none of some 60 so far; unit tests hold what they break (`unit/test_*recovery.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cluster.access_point import AccessPoint
from cluster.connection_point import ConnectionPoint
from cluster.coordinating.recovering import Recovering
from cluster.coordinating.shared import Shared
from cluster.exit_point import ExitPoint
from cluster.matcher import Matcher
from cluster.messages import CONNECTION_POINT, Instruction, Peer, Persist, Recover, Renew, Result, Resume, Send
from cluster.recovery import Recovery
from cluster.serving.changes import Changes
from cluster.serving.connections import Connection
from cluster.serving.delivering import Delivering
from cluster.serving.requests import Requests
from cluster.serving.subscribing import Subscribing
from cluster.view import View
from cluster.watermarks import Watermarks
from tests.sim.mutants import Replace, mutant

# What is held -----------------------------------------------------------------------------------------------------


@mutant("after a recovery the exit point acknowledges on release", seeds=40, scenario="crash")
def acknowledged_too_early(replace: Replace) -> None:
    original = ExitPoint._settle

    def settle(self: ExitPoint, key: Any, publisher: Any) -> None:
        while self._since > 1 and publisher.pending:
            done = publisher.pending.popleft()
            self._tell(key, publisher, done, 1, done.rejected, done.outcome)
        original(self, key, publisher)

    replace(ExitPoint, "_settle", settle)


@mutant("what a client has published is sent again without its oldest frame", seeds=20, scenario="crash")
def one_run_not_sent_again(replace: Replace) -> None:
    original = ConnectionPoint._go_on

    def go_on(self: ConnectionPoint, epoch: int) -> None:
        oldest = {}
        for number, session in self._shared.sessions.items():
            if len(session.unacknowledged) > 1:
                oldest[number] = session.unacknowledged.popleft()
        original(self, epoch)
        for number, taken in oldest.items():
            self._shared.sessions[number].unacknowledged.appendleft(taken)

    replace(ConnectionPoint, "_go_on", go_on)


@mutant("what a client has published is sent again in reverse order", seeds=20, scenario="crash")
def sent_again_in_reverse(replace: Replace) -> None:
    original = ConnectionPoint._go_on

    def go_on(self: ConnectionPoint, epoch: int) -> None:
        for session in self._shared.sessions.values():
            session.unacknowledged.reverse()
        original(self, epoch)
        for session in self._shared.sessions.values():
            session.unacknowledged.reverse()

    replace(ConnectionPoint, "_go_on", go_on)


# The registry -----------------------------------------------------------------------------------------------------


@mutant("one subscription of each connection point is not sent to a new matcher", seeds=90, scenario="crash")
def registry_hole(replace: Replace) -> None:
    original = Changes._to_rebuild

    def to_rebuild(self: Changes, view: View, matchers: Any, everything: bool, changes: Any) -> Iterator[Any]:
        for place, one in enumerate(original(self, view, matchers, everything, changes)):
            if place != len(changes):
                yield one

    replace(Changes, "_to_rebuild", to_rebuild)


@mutant("a subscription that was closed is sent to a new matcher all the same", seeds=10, scenario="member_crash")
def removal_lost(replace: Replace) -> None:
    original = Subscribing.unsubscribe
    original_rebuild = Changes._to_rebuild

    def unsubscribe(self: Subscribing, session: Any, frame: Any) -> None:
        held = session.subscriptions.get(frame.number)
        original(self, session, frame)
        if held is not None:
            self._changes.__dict__.setdefault("closed", []).append((session, held))

    def to_rebuild(self: Changes, *arguments: Any) -> Iterator[Any]:
        yield from original_rebuild(self, *arguments)
        for session, held in self.__dict__.get("closed", []):
            yield session.access_point, held

    replace(Subscribing, "unsubscribe", unsubscribe)
    replace(Changes, "_to_rebuild", to_rebuild)


@mutant("what a client that leaves during a recovery had subscribed to is not removed", seeds=0, scenario="crash")
def leaver_not_removed(replace: Replace) -> None:
    original = ConnectionPoint._go_on

    def go_on(self: ConnectionPoint, epoch: int) -> None:
        self._changes._left.clear()
        original(self, epoch)

    replace(ConnectionPoint, "_go_on", go_on)


@mutant("what a dead connection point's clients had subscribed to stays", seeds=10, scenario="crash_all")
def dead_clients_not_swept(replace: Replace) -> None:
    original = Matcher._recover

    def recover(self: Matcher, message: Recover) -> None:
        replaced = [one for one in message.replaced if one[0] != CONNECTION_POINT]
        original(self, msgspec.structs.replace(message, replaced=replaced))

    replace(Matcher, "_recover", recover)


@mutant("publications are sent again as soon as everybody is connected", seeds=110, scenario="crash_all")
def resumed_before_rebuilt(replace: Replace) -> None:
    original = Recovery.rebuild

    def rebuild(self: Recovery) -> list[Instruction]:
        assert self.view is not None, "nothing to rebuild for"
        doors = self.view.peers(CONNECTION_POINT)
        return [*original(self), *(Send(peer, Resume(self.view.epoch)) for peer in doors)]

    replace(Recovery, "rebuild", rebuild)


@mutant("a connection point takes requests of clients in the middle of a recovery", seeds=40, scenario="member_crash")
def requests_not_waited(replace: Replace) -> None:
    def must_wait(self: Requests, connection: Connection, frame: Any) -> bool:
        return type(frame).__name__ in ("Subscribe", "Unsubscribe") and self._changes.full

    replace(Requests, "must_wait", must_wait)


# What is void -----------------------------------------------------------------------------------------------------


@mutant("an access point takes what was sent to it before the recovery", seeds=20, scenario="crash")
def void_accepted(replace: Replace) -> None:
    original = AccessPoint._recover

    def recover(self: AccessPoint, view: View) -> None:
        original(self, view)
        self._void.clear()

    replace(AccessPoint, "_recover", recover)


@mutant("a connection point does not say from where on things count again", seeds=10, scenario="crash")
def renew_missing(replace: Replace) -> None:
    original = ConnectionPoint._rebuild

    def rebuild(self: ConnectionPoint, message: Any) -> None:
        original(self, message)
        out = self._shared.out
        self._shared.out = [one for one in out if not (isinstance(one, Send) and isinstance(one.message, Renew))]

    replace(ConnectionPoint, "_rebuild", rebuild)


@mutant("an access point takes the Renew of an earlier recovery for that of this one", seeds=0, scenario="crash_all")
def old_renew_accepted(replace: Replace) -> None:
    original = AccessPoint._received

    def received(self: AccessPoint, peer: Peer, message: Any) -> None:
        if isinstance(message, Renew):
            self._void.discard(peer.slot)
        original(self, peer, message)

    replace(AccessPoint, "_received", received)


@mutant("a matcher takes batches and changes of an earlier epoch", seeds=20, scenario="crash")
def zombie_at_the_matcher(replace: Replace) -> None:
    original = Matcher._recover

    def recover(self: Matcher, message: Recover) -> None:
        original(self, message)
        self._recovered = 0

    replace(Matcher, "_recover", recover)


@mutant("an exit point takes results of an earlier epoch", seeds=20, scenario="crash")
def zombie_at_the_exit_point(replace: Replace) -> None:
    original = ExitPoint._join

    def join(self: ExitPoint, matcher: Peer, result: Result) -> None:
        since, self._since = self._since, min(self._since, result.epoch)
        original(self, matcher, result)
        self._since = since

    replace(ExitPoint, "_join", join)


@mutant("an exit point holds for delivered what it had released before the recovery", seeds=0, scenario="crash")
def released_remembered(replace: Replace) -> None:
    original = ExitPoint._recover

    def recover(self: ExitPoint, view: View) -> None:
        known = self._publishers.copy()
        original(self, view)
        for key, publisher in known.items():
            publisher.pending.clear()
            publisher.follower = None
            self._publishers[key] = publisher

    replace(ExitPoint, "_recover", recover)


@mutant("an exit point gives its tokens again after a recovery", seeds=0, scenario="crash")
def tokens_again(replace: Replace) -> None:
    original = ExitPoint._recover

    def recover(self: ExitPoint, view: View) -> None:
        original(self, view)
        self._next_token = 0

    replace(ExitPoint, "_recover", recover)


@mutant("a new connection point gives the numbers of its former incarnation's changes again", seeds=0, scenario="crash")
def change_numbers_again(replace: Replace) -> None:
    original = ConnectionPoint.__init__

    def init(self: ConnectionPoint, *arguments: Any) -> None:
        original(self, *arguments)
        self._changes._next = 0

    replace(ConnectionPoint, "__init__", init)


# Doubles ----------------------------------------------------------------------------------------------------------


@mutant("a connection point forgets in a recovery what it has delivered", seeds=40, scenario="crash_all")
def watermarks_not_kept(replace: Replace) -> None:
    original = ConnectionPoint._recover

    def recover(self: ConnectionPoint, view: View) -> None:
        original(self, view)
        self._shared.watermarks = Watermarks(1000)

    replace(ConnectionPoint, "_recover", recover)


@mutant("the lives of a publisher are not told apart in what was delivered", seeds=170, scenario="crash")
def watermark_over_instances(replace: Replace) -> None:
    original = Watermarks.take

    def take(self: Watermarks, of_run: Iterable[Sequence[str | int]], sequences: Iterable[int]) -> set[int]:
        return original(self, [(run[0], 1) for run in of_run], sequences)

    replace(Watermarks, "take", take)


@mutant("a double counts as delivered though its first copy waits for a place", seeds=0, scenario="crash")
def first_copy_not_waited_for(replace: Replace) -> None:
    original = Delivering._without

    def without(self: Delivering, *arguments: Any) -> Any:
        hold = Delivering._hold
        Delivering._hold = lambda *_: None  # type: ignore[method-assign]
        try:
            return original(self, *arguments)
        finally:
            Delivering._hold = hold  # type: ignore[method-assign]

    replace(Delivering, "_without", without)


# The coordinator --------------------------------------------------------------------------------------------------


@mutant("a second death makes the coordinator forget the first one", seeds=10, scenario="crash")
def second_death_forgets_the_first(replace: Replace) -> None:
    original = Recovery.died

    def died(self: Recovery, peers: Mapping[Peer, int]) -> None:
        self.replaced.clear()
        original(self, peers)

    replace(Recovery, "died", died)


@mutant("the coordinator's next life does not know who had died", seeds=120, scenario="crash_all")
def replaced_not_remembered(replace: Replace) -> None:
    original = Shared.remember

    def remember(self: Shared, operation: Any = None) -> None:
        replaced, self.memory.replaced = self.memory.replaced, []
        original(self, operation)
        self.memory.replaced = replaced

    replace(Shared, "remember", remember)


@mutant("the view of a recovery is announced and not written down", seeds=0, scenario="crash_all")
def recovery_not_persisted(replace: Replace) -> None:
    original = Recovering.connect

    def connect(self: Recovering) -> None:
        out = self._shared.out
        before = len(out)
        original(self)
        out[before:] = [one for one in out[before:] if not isinstance(one, Persist)]

    replace(Recovering, "connect", connect)


@mutant("a death takes back a view change that was decided", seeds=0, scenario="member_crash")
def decision_taken_back(replace: Replace) -> None:
    original = Recovering.replace

    def taken_back(self: Recovering, dead: Sequence[Peer], reason: str) -> None:
        transition = self._shared.transition
        if transition is not None and transition.decided and not self._shared.memory.leaving:
            members = {member.peer for member in transition.before.members}
            if all(member.peer in members for member in transition.after.members):
                self._shared.view = transition.before
        original(self, dead, reason)

    replace(Recovering, "replace", taken_back)
