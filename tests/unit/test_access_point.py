"""The access point: what it stamps on a batch, where it sends a subscription, and what never overtakes what."""

from __future__ import annotations

import random
import struct

import pytest

from cluster.access_point import AccessPoint
from cluster.config import Config, Flow
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Applied,
    ApplyChanges,
    Batch,
    Broadcast,
    Changed,
    ChangeSubscriptions,
    Deliver,
    Drained,
    Heartbeat,
    Instruction,
    LaneDown,
    LaneUp,
    Member,
    Peer,
    Publications,
    Received,
    Run,
    Send,
    SubscriptionChange,
    Tick,
)
from cluster.routing import exit_point_of
from cluster.view import View, first_view

EDGE = Peer(CONNECTION_POINT, 0)
OTHER_EDGE = Peer(CONNECTION_POINT, 3)


def view_with(matchers: int = 3, exit_points: int = 2) -> View:
    members = [Member(CONNECTION_POINT, 0, 1, "host", 1), Member(ACCESS_POINT, 4, 1, "host", 1)]
    members += [Member(MATCHER, 2 * slot + 1, 1, "host", 1) for slot in range(matchers)]
    members += [Member(EXIT_POINT, slot, 1, "host", 1) for slot in range(exit_points)]
    return first_view(members)


def access_point(view: View, batch_publications: int = 100) -> AccessPoint:
    machine = AccessPoint(4, 1, Config(flow=Flow(batch_publications=batch_publications)))
    assert machine.handle(Received(COORDINATOR_PEER, view.install())) == []
    return machine


def publications(*runs: tuple[str, int, int]) -> Publications:
    """runs: (publisher, first sequence, count); each publication is one letter."""
    made = [Run(name, 1, 7 << 32, first, count, 99) for name, first, count in runs]
    count = sum(run.count for run in made)
    return Publications(made, struct.pack(f"<{count}I", *[1] * count), b"p" * count)


def batch_of(instructions: list[Instruction]) -> Batch:
    (broadcast,) = instructions
    assert isinstance(broadcast, Broadcast)
    assert isinstance(broadcast.message, Batch)
    return broadcast.message


def test_a_batch_is_stamped_and_goes_to_every_matcher() -> None:
    view = view_with()
    machine = access_point(view)
    assert machine.handle(Received(EDGE, publications(("a", 5, 2), ("b", 1, 1)))) == []
    (broadcast,) = machine.handle(Drained())
    assert isinstance(broadcast, Broadcast)
    assert broadcast.peers == (Peer(MATCHER, 1), Peer(MATCHER, 3), Peer(MATCHER, 5))
    batch = broadcast.message
    assert isinstance(batch, Batch)
    assert (batch.epoch, batch.expect, batch.sequence) == (1, [1, 3, 5], 1)
    assert batch.runs == [Run("a", 1, 7 << 32, 5, 2, 99), Run("b", 1, 7 << 32, 1, 1, 99)]
    assert batch.exit_points == [exit_point_of((0, 1), "a"), exit_point_of((0, 1), "b")]
    assert (batch.lengths, batch.payload) == (struct.pack("<3I", 1, 1, 1), b"ppp")


def test_nothing_to_send_sends_nothing() -> None:
    machine = access_point(view_with())
    for event in (Drained(), Tick(5), LaneUp(EDGE), LaneDown(EDGE), Drained()):
        assert machine.handle(event) == []


def test_what_gathered_goes_out_as_one_batch_in_order_of_arrival() -> None:
    machine = access_point(view_with())
    machine.handle(Received(EDGE, publications(("a", 1, 2))))
    machine.handle(Received(OTHER_EDGE, publications(("b", 1, 1))))
    machine.handle(Received(EDGE, publications(("a", 3, 1))))
    batch = batch_of(machine.handle(Drained()))
    assert [(run.publisher, run.first_sequence) for run in batch.runs] == [("a", 1), ("b", 1), ("a", 3)]
    assert len(batch.payload) == 4


def test_a_full_batch_does_not_wait_for_the_end_of_the_round() -> None:
    machine = access_point(view_with(), batch_publications=4)
    assert machine.handle(Received(EDGE, publications(("a", 1, 3)))) == []
    batch = batch_of(machine.handle(Received(EDGE, publications(("b", 1, 2)))))
    assert sum(run.count for run in batch.runs) == 5
    assert machine.handle(Drained()) == []


@pytest.mark.parametrize("seed", range(10))
def test_sequences_are_dense(seed: int) -> None:
    """Per access point over all publications, and per exit point over those that it joins."""
    rng = random.Random(seed)
    machine = access_point(view_with(exit_points=3))
    names = [f"publisher-{number}" for number in range(8)]
    expected = 1
    by_exit_point = dict.fromkeys(range(3), 1)
    for _ in range(60):
        for _ in range(rng.randint(1, 4)):
            runs = [(rng.choice(names), 1, rng.randint(1, 5)) for _ in range(rng.randint(1, 3))]
            machine.handle(Received(EDGE, publications(*runs)))
        batch = batch_of(machine.handle(Drained()))
        assert batch.sequence == expected
        for run, exit_point, sequence in zip(batch.runs, batch.exit_points, batch.exit_sequences, strict=True):
            assert sequence == by_exit_point[exit_point]
            by_exit_point[exit_point] += run.count
            expected += run.count
    assert machine.gauges()["publications"] == expected - 1
    assert machine.gauges()["batches"] == 60


def test_a_publisher_keeps_to_one_exit_point_whichever_way_it_comes() -> None:
    view = view_with(exit_points=3)
    machines = [access_point(view), access_point(view)]
    for number in range(30):
        message = publications((f"publisher-{number}", 1, 1))
        chosen = set()
        for machine in machines:
            machine.handle(Received(EDGE, message))
            chosen |= set(batch_of(machine.handle(Drained())).exit_points)
        assert len(chosen) == 1


def test_a_change_goes_to_the_owner_alone() -> None:
    view = view_with()
    machine = access_point(view)
    for subscription in range(0, 1 << 30, 1 << 25):
        change = SubscriptionChange(3, subscription, b"filter")
        out = machine.handle(Received(OTHER_EDGE, ChangeSubscriptions([change])))
        assert out == [Send(Peer(MATCHER, view.owner(subscription)), ApplyChanges(1, 3, [change]))]


def test_many_changes_are_split_by_owner_and_keep_their_order() -> None:
    view = view_with()
    machine = access_point(view)
    changes = [SubscriptionChange(number, number % 40, None) for number in range(100)]
    out = machine.handle(Received(EDGE, ChangeSubscriptions(changes)))
    assert len(out) == 3
    seen = []
    for instruction in out:
        assert isinstance(instruction, Send)
        message = instruction.message
        assert isinstance(message, ApplyChanges)
        numbers = [change.change for change in message.changes]
        assert numbers == sorted(numbers)
        assert all(view.owner(change.subscription) == instruction.peer.slot for change in message.changes)
        seen += numbers
    assert sorted(seen) == list(range(100))
    assert machine.gauges()["changes"] == 100


def test_a_change_does_not_overtake_what_was_gathered() -> None:
    view = view_with()
    machine = access_point(view)
    machine.handle(Received(EDGE, publications(("a", 1, 1))))
    out = machine.handle(Received(EDGE, ChangeSubscriptions([SubscriptionChange(1, 1, None)])))
    assert [type(one) for one in out] == [Broadcast, Send]
    machine.handle(Received(EDGE, publications(("a", 2, 1))))
    assert batch_of(machine.handle(Drained())).sequence == 2


def test_answers_go_back_to_the_connection_point_that_asked() -> None:
    view = view_with()
    machine = access_point(view)
    one, another = [number for number in range(50) if view.owner(number) == 1][:2]
    changes = [SubscriptionChange(7, one, None), SubscriptionChange(8, another, None)]
    machine.handle(Received(OTHER_EDGE, ChangeSubscriptions(changes)))
    assert machine.handle(Received(Peer(MATCHER, 1), Applied(3, [7]))) == [Send(OTHER_EDGE, Changed([7], 1))]
    assert machine.handle(Received(Peer(MATCHER, 1), Applied(3, [8]))) == [Send(OTHER_EDGE, Changed([8], 1))]
    assert machine.handle(Received(Peer(MATCHER, 1), Applied(3, [7, 8]))) == [], "nobody asked"


def test_it_holds_nothing_when_a_round_is_over() -> None:
    machine = access_point(view_with())
    for number in range(1, 200):
        machine.handle(Received(EDGE, publications(("a", number, 1))))
        machine.handle(Drained())
    assert machine._gathered == []
    assert machine._gathered_count == 0


def test_what_it_does_not_expect_is_a_broken_invariant() -> None:
    machine = access_point(view_with())
    with pytest.raises(AssertionError, match="access_point 4 got Heartbeat from matcher 1"):
        machine.handle(Received(Peer(MATCHER, 1), Heartbeat({})))
    with pytest.raises(AssertionError, match="got Deliver"):
        machine.handle(Received(EDGE, Deliver([], *[b""] * 9)))
    fresh = AccessPoint(0, 1, Config())
    fresh.handle(Received(EDGE, publications(("a", 1, 1))))
    with pytest.raises(AssertionError, match="before a view"):
        fresh.handle(Drained())
