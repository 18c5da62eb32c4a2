"""The access point in a view change: both owners are told, epochs part where they must, and what is given up is."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from cluster.access_point import AccessPoint
from cluster.config import Config, Flow
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    MATCHER,
    Abort,
    Applied,
    ApplyChanges,
    Batch,
    Begin,
    Broadcast,
    Changed,
    ChangeSubscriptions,
    Commit,
    Drained,
    Ended,
    Flush,
    Instruction,
    Mark,
    Message,
    Peer,
    Publications,
    Received,
    Retire,
    Run,
    Send,
    Settled,
    SubscriptionChange,
    Switch,
)
from cluster.view import View, key_group
from tests.unit.views import prepare, view

CP0, CP3, CP5 = (Peer(CONNECTION_POINT, slot) for slot in (0, 3, 5))
M0, M1, M2 = (Peer(MATCHER, slot) for slot in range(3))
BEFORE = view(1, connection_points=(0, 3), access_points=(4,), matchers=(0, 1), exit_points=(0,))
SCALED = view(2, connection_points=(0, 3), access_points=(4,), matchers=(0, 1, 2), exit_points=(0,))
REPLACED = view(2, connection_points=(0, 3), access_points=(4,), matchers=(0, 2), exit_points=(0,))
WIDER = view(2, connection_points=(0, 3, 5), access_points=(4, 6), matchers=(0, 1), exit_points=(0,))


def owned(before: int, after: int, view_after: View = SCALED) -> int:
    """Return a subscription with these owners in the two views."""
    return next(
        number for number in range(10_000) if BEFORE.owner(number) == before and view_after.owner(number) == after
    )


def change(number: int, subscription: int) -> SubscriptionChange:
    return SubscriptionChange(number, subscription, b"form")


class Bench:
    """An access point that serves a view; what it says comes back in a short form."""

    def __init__(self, after: View = SCALED, slot: int = 4) -> None:
        self.machine = AccessPoint(slot, 1, Config(flow=Flow(batch_publications=100)))
        assert self.tell(COORDINATOR_PEER, BEFORE.install()) == []
        self.after = after
        self.number = 0

    def tell(self, peer: Peer, message: Message) -> list[Instruction]:
        return self.machine.handle(Received(peer, message))

    def prepare(self) -> Bench:
        assert self.tell(COORDINATOR_PEER, prepare(self.after)) == []
        return self

    def begin(self, *, park: bool = False) -> Bench:
        self.prepare()
        assert self.tell(COORDINATOR_PEER, Begin(2, park)) == [Broadcast(self.both(), Mark(2))]
        return self

    def both(self) -> tuple[Peer, ...]:
        return tuple(sorted({*BEFORE.peers(MATCHER), *self.after.peers(MATCHER)}))

    def change(self, subscription: int, by: Peer = CP0) -> list[tuple[Peer, int]]:
        """A change comes; return who is told, and the epoch that is named."""
        self.number += 1
        out = self.tell(by, ChangeSubscriptions([change(self.number, subscription)]))
        told = []
        for one in out:
            assert isinstance(one, Send)
            assert isinstance(one.message, ApplyChanges)
            assert one.message.connection_point == by.slot
            told.append((one.peer, one.message.epoch))
        return told

    def applied(self, matcher: Peer, *changes: int, by: Peer = CP0) -> list[Instruction]:
        return self.tell(matcher, Applied(by.slot, list(changes)))

    def publish(self, count: int = 1, by: Peer = CP0) -> list[Any]:
        run = Run("p", 1, by.slot << 32, 1, count, 5)
        return batches(self.tell(by, Publications([run], struct.pack(f"<{count}I", *[1] * count), b"p" * count)))

    def drain(self) -> list[Any]:
        return batches(self.machine.handle(Drained()))

    def leave(self) -> list[Instruction]:
        """Commit and retire, where access points stay."""
        return [*self.tell(COORDINATOR_PEER, Commit(2)), *self.tell(COORDINATOR_PEER, Retire(2))]


def batches(out: list[Instruction]) -> list[Any]:
    """Return (epoch, matchers, exit sequence, publications) of each batch; nothing else may be there."""
    found = []
    for one in out:
        assert isinstance(one, Broadcast)
        assert isinstance(one.message, Batch)
        batch = one.message
        assert [peer.slot for peer in one.peers] == batch.expect
        found.append((batch.epoch, batch.expect, batch.exit_sequences[0], sum(run.count for run in batch.runs)))
    return found


# Subscriptions -----------------------------------------------------------------------------------------------------


def test_from_the_mark_to_the_end_changes_go_to_the_owners_of_both_views() -> None:
    moves, stays = owned(1, 2), owned(0, 0)
    bench = Bench().prepare()
    assert bench.change(moves) == [(M1, 1)], "not marked yet"
    bench = Bench().begin()
    assert bench.change(moves) == [(M1, 1), (M2, 1)]
    assert bench.change(stays) == [(M0, 1)]
    bench.tell(COORDINATOR_PEER, Commit(2))
    assert bench.change(moves) == [(M1, 1), (M2, 1)], "others may still publish in the former view"
    bench.tell(COORDINATOR_PEER, Retire(2))
    assert bench.change(moves) == [(M2, 2)]
    assert bench.change(stays) == [(M0, 2)]


def test_both_owners_must_have_answered() -> None:
    bench = Bench().begin()
    bench.change(owned(1, 2))
    assert bench.applied(M1, 1) == []
    assert bench.machine.gauges()["changes_unanswered"] == 1
    assert bench.applied(M1, 1) == [], "nobody answers for another one"
    assert bench.applied(M2, 1) == [Send(CP0, Changed([1], 1))]
    assert bench.applied(M2, 1) == []
    assert bench.machine.gauges()["changes_unanswered"] == 0


def test_the_numbers_of_connection_points_are_their_own() -> None:
    bench = Bench().begin()
    bench.tell(CP0, ChangeSubscriptions([change(7, owned(1, 2))]))
    bench.tell(CP3, ChangeSubscriptions([change(7, owned(1, 2))]))
    bench.applied(M1, 7, by=CP3)
    bench.applied(M2, 7, by=CP0)
    assert bench.applied(M2, 7, by=CP3) == [Send(CP3, Changed([7], 1))]
    assert bench.applied(M1, 7, by=CP0) == [Send(CP0, Changed([7], 1))]


def test_retire_drops_owners_that_are_gone_and_no_others() -> None:
    bench = Bench(REPLACED).begin()
    bench.change(owned(1, 2, REPLACED))
    bench.change(owned(1, 2, REPLACED))
    bench.change(owned(0, 0, REPLACED))
    bench.applied(M2, 1)
    bench.tell(COORDINATOR_PEER, Commit(2))
    out = bench.tell(COORDINATOR_PEER, Retire(2))
    assert out == [Send(CP0, Changed([1], 1)), Send(COORDINATOR_PEER, Settled(2))]
    assert bench.applied(M1, 1, 2) == [], "late, of one that is gone"
    assert bench.applied(M0, 3) == [Send(CP0, Changed([3], 1))]
    assert bench.applied(M2, 2) == [Send(CP0, Changed([2], 1))]


def test_abort_drops_newcomers() -> None:
    bench = Bench().begin()
    bench.change(owned(1, 2))
    bench.change(owned(1, 2))
    bench.applied(M1, 1)
    out = bench.tell(COORDINATOR_PEER, Abort(2))
    assert out == [Send(CP0, Changed([1], 1)), Send(COORDINATOR_PEER, Settled(2))]
    assert bench.applied(M1, 2) == [Send(CP0, Changed([2], 1))]
    assert bench.change(owned(1, 2)) == [(M1, 1)]
    assert bench.tell(COORDINATOR_PEER, Abort(2)) == [Send(COORDINATOR_PEER, Settled(2))]
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == []


# Publications ------------------------------------------------------------------------------------------------------


def test_a_batch_is_closed_where_the_epoch_changes() -> None:
    bench = Bench().begin()
    assert bench.publish(3) == []
    batch, switch, ended = bench.tell(COORDINATOR_PEER, Commit(2))
    assert batches([batch]) == [(1, [0, 1], 1, 3)]
    assert switch == Broadcast((M0, M1, M2), Switch(2, [(0, 4)])), "and where the former epoch ends"
    assert ended == Send(COORDINATOR_PEER, Ended(2))
    assert bench.publish(2) == []
    assert bench.drain() == [(2, [0, 1, 2], 1, 2)], "sequences of the next epoch begin at 1"
    bench.publish(1)
    assert bench.drain() == [(2, [0, 1, 2], 3, 1)]
    bench.tell(COORDINATOR_PEER, Retire(2))
    bench.publish(1)
    assert bench.drain() == [(2, [0, 1, 2], 4, 1)]


def test_a_mark_closes_the_batch_and_keeps_the_epoch() -> None:
    bench = Bench().prepare()
    bench.publish(2)
    batch, mark = bench.tell(COORDINATOR_PEER, Begin(2, False))
    assert batches([batch]) == [(1, [0, 1], 1, 2)]
    assert mark == Broadcast((M0, M1, M2), Mark(2))
    bench.publish(1)
    assert bench.drain() == [(1, [0, 1], 3, 1)]


def test_a_commit_that_is_said_again_is_answered_again_and_does_nothing() -> None:
    bench = Bench().begin()
    assert bench.tell(COORDINATOR_PEER, Begin(2, False)) == [], "one mark"
    bench.tell(COORDINATOR_PEER, Commit(2))
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == [Send(COORDINATOR_PEER, Ended(2))]
    bench.tell(COORDINATOR_PEER, Retire(2))
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == [Send(COORDINATOR_PEER, Ended(2))]
    assert bench.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2))]


def test_messages_of_other_epochs_are_nothing() -> None:
    bench = Bench().prepare()
    for message in (Begin(3, False), Commit(3)):
        assert bench.tell(COORDINATOR_PEER, message) == []
    assert bench.tell(CP0, Switch(3, [])) == []
    bench.begin()
    bench.publish(1)
    assert bench.drain() == [(1, [0, 1], 1, 1)]


def test_an_abort_keeps_what_was_gathered_and_the_sequences() -> None:
    bench = Bench().begin()
    bench.publish(2)
    out = bench.tell(COORDINATOR_PEER, Abort(2))
    assert batches(out[:-1]) == [(1, [0, 1], 1, 2)]
    bench.publish(1)
    assert bench.drain() == [(1, [0, 1], 3, 1)]


# Where access points come or go ------------------------------------------------------------------------------------


def test_only_if_access_points_change_connection_points_are_waited_for() -> None:
    bench = Bench(WIDER).begin()
    assert bench.tell(COORDINATOR_PEER, Commit(2)) == []
    assert bench.tell(CP3, Switch(2, [])) == []
    assert bench.tell(CP3, Switch(2, [])) == [], "once more is no other one's"
    assert bench.tell(CP5, Switch(2, [])) == [], "a newcomer has nothing of the former epoch"
    switch, ended = bench.tell(CP0, Switch(2, []))
    assert switch == Broadcast((M0, M1), Switch(2, [(0, 1)]))
    assert ended == Send(COORDINATOR_PEER, Ended(2))


def test_each_publication_is_of_the_epoch_in_which_its_connection_point_is() -> None:
    bench = Bench(WIDER).begin()
    bench.publish(1, by=CP0)
    bench.publish(1, by=CP3)
    assert bench.tell(CP3, Switch(2, [])) != [], "the batch that was gathered goes out"
    assert bench.publish(1, by=CP3) == []
    assert bench.publish(2, by=CP0) == [(2, [0, 1], 1, 1)], "the epochs do not share a batch"
    assert bench.publish(1, by=CP5) == [(1, [0, 1], 3, 2)]
    assert bench.drain() == [(2, [0, 1], 2, 1)]
    bench.publish(1, by=CP0)
    batch, switch, _ = bench.tell(CP0, Switch(2, []))
    assert batches([batch]) == [(1, [0, 1], 5, 1)]
    assert switch == Broadcast((M0, M1), Switch(2, [(0, 6)]))
    bench.publish(1, by=CP0)
    bench.publish(1, by=CP3)
    assert bench.drain() == [(2, [0, 1], 3, 2)]


def test_a_new_access_point_has_no_former_epoch() -> None:
    bench = Bench(WIDER, slot=6).prepare()
    bench.tell(CP3, Switch(2, []))
    bench.publish(1, by=CP3)
    assert bench.drain() == [(2, [0, 1], 1, 1)]
    switch, _ = bench.tell(CP0, Switch(2, []))
    assert switch == Broadcast((M0, M1), Switch(2, [(0, 1)]))


def test_a_leaver_goes_when_every_change_is_answered() -> None:
    after = view(2, connection_points=(0, 3), access_points=(6,), matchers=(0, 1), exit_points=(0,))
    bench = Bench(after).begin()
    bench.change(owned(1, 2))
    bench.tell(CP0, Switch(2, []))
    bench.tell(CP3, Switch(2, []))
    assert bench.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2))]
    assert bench.applied(M1, 1) == [Send(CP0, Changed([1], 1)), Flush()]
    idle = Bench(after).begin()
    idle.tell(CP0, Switch(2, []))
    idle.tell(CP3, Switch(2, []))
    assert idle.tell(COORDINATOR_PEER, Retire(2)) == [Send(COORDINATOR_PEER, Settled(2)), Flush()]


def test_a_view_is_not_retired_before_the_switch_nor_aborted_after_it() -> None:
    with pytest.raises(AssertionError, match="has not switched"):
        Bench().begin().tell(COORDINATOR_PEER, Retire(2))
    bench = Bench().begin()
    bench.tell(COORDINATOR_PEER, Commit(2))
    with pytest.raises(AssertionError, match="which is aborted"):
        bench.tell(COORDINATOR_PEER, Abort(2))


# The paper's protocol ----------------------------------------------------------------------------------------------


def test_stop_swap_parks_changes_from_the_mark_and_publications_from_the_switch() -> None:
    bench = Bench().begin(park=True)
    moves = owned(1, 2)
    assert bench.change(moves) == []
    assert bench.change(owned(0, 0), by=CP3) == []
    bench.publish(2)
    assert bench.drain() == [(1, [0, 1], 1, 2)], "publications go on until the switch"
    bench.tell(COORDINATOR_PEER, Commit(2))
    bench.publish(3)
    bench.publish(1, by=CP3)
    assert bench.drain() == []
    gauges = bench.machine.gauges()
    assert (gauges["parked_subscriptions_most"], gauges["parked_publications_most"]) == (2, 4)
    out = bench.tell(COORDINATOR_PEER, Retire(2))
    assert out == [
        Send(M2, ApplyChanges(2, 0, [change(1, moves)])),
        Send(M0, ApplyChanges(2, 3, [change(2, owned(0, 0))])),
        Send(COORDINATOR_PEER, Settled(2)),
    ]
    assert bench.drain() == [(2, [0, 1, 2], 1, 4)]
    assert bench.change(moves) == [(M2, 2)], "nothing is parked any more"


def test_stop_swap_releases_what_was_parked_at_an_abort_too() -> None:
    bench = Bench().begin(park=True)
    moves = owned(1, 2)
    bench.change(moves)
    out = bench.tell(COORDINATOR_PEER, Abort(2))
    assert out == [Send(M1, ApplyChanges(1, 0, [change(1, moves)])), Send(COORDINATOR_PEER, Settled(2))]
    assert bench.change(moves) == [(M1, 1)]


def test_waves_park_nothing() -> None:
    bench = Bench().begin()
    bench.change(owned(1, 2))
    bench.publish(5)
    bench.leave()
    gauges = bench.machine.gauges()
    assert (gauges["parked_subscriptions_most"], gauges["parked_publications_most"]) == (0, 0)
    assert key_group(owned(1, 2)) >= 2048


def test_a_newcomer_tells_both_owners_though_it_has_not_heard_begin() -> None:
    """Clients come to it once the change is decided, by other lanes than Begin; nobody waits for its Mark."""
    after = view(2, connection_points=(0, 3), access_points=(4, 6), matchers=(0, 1, 2), exit_points=(0,))
    bench = Bench(after, slot=6).prepare()
    assert bench.tell(CP0, Switch(2, [])) == []
    assert bench.change(owned(1, 2, after)) == [(M1, 1), (M2, 1)]
    assert bench.applied(M1, 1) == []
    assert bench.applied(M2, 1) == [Send(CP0, Changed([1], 1))]
    assert bench.tell(COORDINATOR_PEER, Begin(2, False)) == []
