"""Is the checker awake? Ways to break the protocol, each of which some seed must catch.

A mutant replaces a method of a real machine for as long as `applied` lasts. `seeds` is the promise that the tests
hold: within so many seeds from 0 at least one fails. The shares of failing seeds, as measured, are in tests/README.md;
a rare one says how much a passed run of some hundred seeds is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from cluster import columns, frames
from cluster.access_point import AccessPoint
from cluster.conflation import Attributes, Claims
from cluster.connection_point import ConnectionPoint
from cluster.coordinator import Coordinator
from cluster.exit_point import ExitPoint
from cluster.matcher import Matcher
from cluster.messages import (
    MATCHER,
    Acknowledge,
    Applied,
    ApplyChanges,
    Batch,
    Changed,
    ChangeSubscriptions,
    Event,
    Instruction,
    Peer,
    Publications,
    Received,
    Result,
    Send,
    SubscriptionChange,
    Tick,
    subscription_id,
)
from cluster.outbox import Chunk, Outbox
from cluster.policy import Policy
from cluster.serving.delivering import Delivering
from cluster.serving.publishing import Publishing
from cluster.serving.subscribing import Subscribing

Replace = Callable[[type, str, Any], None]


@dataclass(frozen=True)
class Mutant:
    """what: the mistake, in a sentence. seeds: it is caught within so many, 0 if none is known.

    scenario: of those runs; without deaths, if it is not about them: a recovery puts right what it did not break.
    apply: makes it, with the patcher given.
    """

    what: str
    seeds: int
    scenario: str
    apply: Callable[[Replace], None]


MUTANTS: dict[str, Mutant] = {}


def mutant(
    what: str, *, seeds: int, scenario: str = "undying"
) -> Callable[[Callable[[Replace], None]], Callable[[Replace], None]]:
    """Enter a mutant under its function's name."""

    def enter(apply: Callable[[Replace], None]) -> Callable[[Replace], None]:
        MUTANTS[apply.__name__.replace("_", "-")] = Mutant(what, seeds, scenario, apply)
        return apply

    return enter


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Break the machines in the named way; None leaves them whole."""
    with ExitStack() as stack:
        if name is not None:

            def replace(kind: type, attribute: str, value: Any) -> None:
                stack.enter_context(patch.object(kind, attribute, value))

            MUTANTS[name].apply(replace)
        yield


# The exit point ---------------------------------------------------------------------------------------------------


@mutant("the exit point delivers what a publisher sends again", seeds=30)
def no_duplicates_removed(replace: Replace) -> None:
    original = ExitPoint._publisher

    def forgetful(self: ExitPoint, key: Any, run: Any) -> Any:
        publisher = original(self, key, run)
        publisher.released = 0
        return publisher

    replace(ExitPoint, "_publisher", forgetful)


@mutant("the exit point is content with one matcher's answer", seeds=20)
def one_answer_is_enough(replace: Replace) -> None:
    original = ExitPoint._join

    def join(self: ExitPoint, matcher: Peer, result: Any) -> None:
        original(self, matcher, _changed(result, expect=[matcher.slot]))

    replace(ExitPoint, "_join", join)


def _changed(message: Any, **values: Any) -> Any:
    """Return the message with other values in these fields."""
    return type(message)(**({name: getattr(message, name) for name in message.__struct_fields__} | values))


@mutant("the exit point acknowledges on release, not when the connection points have taken the run", seeds=60)
def acknowledge_on_release(replace: Replace) -> None:
    def settle(self: ExitPoint, key: Any, publisher: Any) -> None:
        while publisher.pending:
            done = publisher.pending.popleft()
            self._tell(key, publisher, done, 1, done.rejected, done.outcome)

    replace(ExitPoint, "_settle", settle)


@mutant("the exit point acknowledges a run though an earlier one is still waited for", seeds=20)
def acknowledge_out_of_order(replace: Replace) -> None:
    def settle(self: ExitPoint, key: Any, publisher: Any) -> None:
        for done in [one for one in publisher.pending if not one.waits]:
            publisher.pending.remove(done)
            self._tell(key, publisher, done, 1, done.rejected, done.outcome)

    replace(ExitPoint, "_settle", settle)


@mutant("the exit point waits for one connection point where several got notifications", seeds=100)
def first_delivered_counts_for_all(replace: Replace) -> None:
    def delivered(self: ExitPoint, tokens: list[int]) -> None:
        for token in tokens:
            known = self._tokens.pop(token, None)
            if known is not None and known[2].waits:
                known[2].waits = 0
                self._settle(known[0], known[1])

    replace(ExitPoint, "_delivered", delivered)


@mutant("the exit point forgets to tell which publications were rejected", seeds=20)
def rejections_untold(replace: Replace) -> None:
    original = ExitPoint._tell

    def tell(self: ExitPoint, key: Any, publisher: Any, last: Any, runs: int, rejected: Any, outcome: Any) -> None:
        original(self, key, publisher, last, runs, [], outcome)

    replace(ExitPoint, "_tell", tell)


# The connection point ---------------------------------------------------------------------------------------------


@mutant("the connection point delivers for subscriptions that it has confirmed as closed", seeds=40)
def closed_still_delivered(replace: Replace) -> None:
    replace(Chunk, "only", lambda self, live: self)


@mutant("what already waits in the outbox survives the close of its subscription", seeds=40)
def outbox_keeps_closed(replace: Replace) -> None:
    replace(Outbox, "keep", lambda self, live: None)


@mutant("a run counts as delivered though it is beyond the limit of a subscriber's queue", seeds=60)
def queue_admits_everything(replace: Replace) -> None:
    replace(Outbox, "admits", lambda self, position: True)


@mutant("a full queue drops notifications of subscriptions with policy block", seeds=20)
def block_is_dropped(replace: Replace) -> None:
    original = Outbox.set_policy

    def set_policy(self: Outbox, number: int, policy: Policy) -> None:
        original(self, number, Policy("drop_oldest") if policy.name == "block" else policy)

    replace(Outbox, "set_policy", set_policy)


@mutant("drops are not told to the client", seeds=20)
def drops_untold(replace: Replace) -> None:
    replace(Outbox, "take_drops", lambda self: {})


@mutant("now and then a drop is not counted", seeds=20)
def drop_not_counted(replace: Replace) -> None:
    original = Outbox._count

    def count(self: Outbox, lost: Chunk, reason: str) -> None:
        calls: list[None] = self.__dict__.setdefault("calls", [])
        calls.append(None)
        if len(calls) % 4:
            original(self, lost, reason)

    replace(Outbox, "_count", count)


@mutant("what is outdated is not counted as dropped", seeds=20)
def outdated_not_counted(replace: Replace) -> None:
    original = Outbox._count

    def count(self: Outbox, lost: Chunk, reason: str) -> None:
        if reason != "latest_per_key":
            original(self, lost, reason)

    replace(Outbox, "_count", count)


@mutant("of what waits with one value latest_per_key keeps the oldest, not the newest", seeds=40)
def oldest_per_key(replace: Replace) -> None:
    original = Outbox._arrive

    def arrive(self: Outbox, entry: Any, conflating: bool) -> None:
        claims = self._attributes.claims(entry.chunk.numbers, entry.chunk.payload) if conflating else []
        if any(key in self._newest._claims for key, _ in claims):
            self._count(entry.chunk, "latest_per_key")
        else:
            original(self, entry, conflating)

    replace(Outbox, "_arrive", arrive)


@mutant("for latest_per_key every value counts as the same", seeds=40)
def every_value_the_same(replace: Replace) -> None:
    original = Attributes.claims

    def claims(self: Attributes, numbers: bytes, publication: bytes) -> Claims:
        return [((attribute, None), own) for (attribute, _), own in original(self, numbers, publication)]

    replace(Attributes, "claims", claims)


@mutant("a drop is told with the reason of another policy", seeds=20)
def drops_under_one_name(replace: Replace) -> None:
    original = Outbox._count
    replace(Outbox, "_count", lambda self, lost, reason: original(self, lost, "latest_per_key"))


@mutant("a full queue of a subscription with policy disconnect drops the oldest", seeds=40)
def disconnect_is_dropped(replace: Replace) -> None:
    original = Outbox.set_policy

    def set_policy(self: Outbox, number: int, policy: Policy) -> None:
        original(self, number, Policy("drop_oldest") if policy.name == "disconnect" else policy)

    replace(Outbox, "set_policy", set_policy)


@mutant("a subscribe is confirmed before the matchers have it", seeds=20)
def done_at_once(replace: Replace) -> None:
    original = Subscribing._send_change

    def send_change(self: Subscribing, session: Any, request: int, number: int, normal_form: Any) -> None:
        original(self, session, request, number, normal_form)
        self._changes.underway[self._changes._next].request = None
        self._shared.write(session, frames.Done(request))

    replace(Subscribing, "_send_change", send_change)


@mutant("an update is a close and an open, with room in between", seeds=60)
def update_in_two_steps(replace: Replace) -> None:
    original = Subscribing._send_change

    def send_change(self: Subscribing, session: Any, request: int, number: int, normal_form: Any) -> None:
        if normal_form is not None:
            gone = self._changes.note(0, None, None, subscription_id(session.key, number), None)
            self._shared.out.append(Send(session.access_point, ChangeSubscriptions([gone])))
        original(self, session, request, number, normal_form)

    replace(Subscribing, "_send_change", send_change)


@mutant("a subscription change overtakes publications of its client that were gathered before", seeds=40)
def change_overtakes_gathered(replace: Replace) -> None:
    original = Subscribing._send_change

    def send_change(self: Subscribing, session: Any, request: int, number: int, normal_form: Any) -> None:
        gathering = self._changes._gathering
        gathered, gathering._publications = gathering._publications, {}
        original(self, session, request, number, normal_form)
        gathering._publications = gathered

    replace(Subscribing, "_send_change", send_change)


@mutant("a client's subscriptions stay at the matchers when its connection ends", seeds=20)
def subscriptions_left_behind(replace: Replace) -> None:
    original = ConnectionPoint._gone

    def gone(self: ConnectionPoint, connection: Any) -> None:
        if connection.session is not None:
            connection.session.subscriptions.clear()
        original(self, connection)

    replace(ConnectionPoint, "_gone", gone)


@mutant("runs that a client holds are not let go when its connection ends", seeds=150)
def holds_outlive_the_client(replace: Replace) -> None:
    original = Delivering.release

    def release(self: Delivering, session: Any, *, everything: bool = False) -> None:
        if not everything:
            original(self, session)

    replace(Delivering, "release", release)


@mutant("of several acknowledgements in one message only the first is passed on", seeds=20)
def acknowledgements_lost(replace: Replace) -> None:
    original = Publishing.acknowledge

    def acknowledge(self: Publishing, message: Acknowledge) -> None:
        original(self, Acknowledge(message.acknowledgements[:1], message.outcomes[:1], message.since))

    replace(Publishing, "acknowledge", acknowledge)


@mutant("acknowledgements that nobody waits for are gathered and never told", seeds=60)
def gathered_never_told(replace: Replace) -> None:
    replace(Publishing, "tell_all", lambda self: None)


# The access point -------------------------------------------------------------------------------------------------


@mutant("the access point lets a subscription change overtake the batch that it gathers", seeds=40)
def change_overtakes_batch(replace: Replace) -> None:
    original = AccessPoint._received

    def received(self: AccessPoint, peer: Peer, message: Any) -> None:
        if isinstance(message, ChangeSubscriptions):
            self._route(peer, message.changes)
        else:
            original(self, peer, message)

    replace(AccessPoint, "_received", received)


@mutant("the access point sends a batch's messages in the wrong order", seeds=40)
def batch_reversed(replace: Replace) -> None:
    original = AccessPoint._send_batch

    def send_batch(self: AccessPoint) -> None:
        self._gathered.reverse()
        original(self)

    replace(AccessPoint, "_send_batch", send_batch)


@mutant("the access point's exit sequences have holes", seeds=5)
def holes_in_exit_sequences(replace: Replace) -> None:
    original = AccessPoint._send_batch

    def send_batch(self: AccessPoint) -> None:
        original(self)
        for slot in self._exit_sequences:
            self._exit_sequences[slot] += 1

    replace(AccessPoint, "_send_batch", send_batch)


@mutant("the access point confirms a change when it has routed it", seeds=100)
def confirmed_when_routed(replace: Replace) -> None:
    original = AccessPoint._received

    def received(self: AccessPoint, peer: Peer, message: Any) -> None:
        if isinstance(message, Applied):
            return
        original(self, peer, message)
        if isinstance(message, ChangeSubscriptions):
            self._out.append(Send(peer, Changed([change.change for change in message.changes], self._since)))

    replace(AccessPoint, "_received", received)


@mutant("the access point routes a replaced filter to another matcher than the first one", seeds=40)
def owner_changes(replace: Replace) -> None:
    original = AccessPoint._route

    def route(self: AccessPoint, connection_point: Peer, changes: list[SubscriptionChange]) -> None:
        before = len(self._out)
        original(self, connection_point, changes)
        if self.counters["changes"] % 4 == 0:
            assert self._view is not None, "a subscription before a view"
            last = self._view.peers(MATCHER)[-1]
            self._out[before:] = [
                Send(last, one.message) if isinstance(one, Send) else one for one in self._out[before:]
            ]

    replace(AccessPoint, "_route", route)


@mutant("now and then the access point leaves a publication out", seeds=20)
def publications_lost(replace: Replace) -> None:
    original = AccessPoint._received

    def received(self: AccessPoint, peer: Peer, message: Any) -> None:
        if not (isinstance(message, Publications) and self.counters["batches"] % 13 == 12 and not self._gathered):
            original(self, peer, message)
        else:
            self.counters["batches"] += 1

    replace(AccessPoint, "_received", received)


# The matcher ------------------------------------------------------------------------------------------------------


@mutant("the matcher confirms a change and applies it after the next batch", seeds=40)
def confirmed_before_applied(replace: Replace) -> None:
    original = Matcher.handle

    def handle(self: Matcher, event: Event) -> list[Instruction]:
        late: list[Received] = self.__dict__.setdefault("late", [])
        if isinstance(event, Received) and isinstance(event.message, ApplyChanges):
            late.append(event)
            changes = [change.change for change in event.message.changes]
            return [Send(event.peer, Applied(event.message.connection_point, changes))]
        out = original(self, event)
        if isinstance(event, Tick) or (isinstance(event, Received) and isinstance(event.message, Batch)):
            for change in late:
                original(self, change)
            late.clear()
        return out

    replace(Matcher, "handle", handle)


@mutant("the matcher does not answer for a batch without hits", seeds=5)
def silent_without_hits(replace: Replace) -> None:
    original = Matcher._match

    def match(self: Matcher, access_point: Peer, batch: Batch) -> list[Instruction]:
        sent = [one for one in original(self, access_point, batch) if isinstance(one, Send)]
        return [one for one in sent if isinstance(one.message, Result) and one.message.matched]

    replace(Matcher, "_match", match)


@mutant("the matcher lists only the first of several subscriptions of one client", seeds=20)
def one_subscription_a_client(replace: Replace) -> None:
    original = Matcher._match

    def match(self: Matcher, access_point: Peer, batch: Batch) -> list[Instruction]:
        out: list[Instruction] = []
        for one in original(self, access_point, batch):
            assert isinstance(one, Send) and isinstance(one.message, Result), "a batch is answered"  # noqa: PT018
            result = one.message
            counts = columns.u32(result.matches)
            if len(counts) and counts.max() > 1:
                numbers = columns.u32(result.numbers)[columns.starts(counts)[:-1]]
                ones = np.ones(len(counts), columns.U32)
                one = Send(one.peer, _changed(result, matches=ones.tobytes(), numbers=numbers.tobytes()))
            out.append(one)
        return out

    replace(Matcher, "_match", match)


# The coordinator --------------------------------------------------------------------------------------------------


@mutant("the coordinator does not tell the older session that it was taken over", seeds=80)
def older_session_untold(replace: Replace) -> None:
    original = Coordinator.handle

    def handle(self: Coordinator, event: Event) -> list[Instruction]:
        return [
            one
            for one in original(self, event)
            if not (isinstance(one, Send) and type(one.message).__name__ == "SessionTaken")
        ]

    replace(Coordinator, "handle", handle)
