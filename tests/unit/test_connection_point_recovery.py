"""The connection point in a recovery: what it sends again, in which order; what waits; what it knows for a double."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from cluster import frames, rebuilding
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    NUMBER_BITS,
    Abort,
    Acknowledge,
    Changed,
    ChangeSubscriptions,
    Commit,
    Deliver,
    Delivered,
    Flush,
    Message,
    Peer,
    Publications,
    Rebuild,
    Rebuilt,
    Received,
    Recover,
    Renew,
    Resume,
    SubscriptionChange,
)
from cluster.routing import access_point_of
from cluster.view import View, key_group
from tests.unit.edge import Edge, deliver, publish, small_config
from tests.unit.test_connection_point_notify import listening, sequences_of, tokens_of
from tests.unit.views import prepare, view

AP0, AP1, EP0 = Peer(ACCESS_POINT, 0), Peer(ACCESS_POINT, 1), Peer(EXIT_POINT, 0)
ME = (CONNECTION_POINT, 0)


def tell(edge: Edge, message: Message) -> None:
    edge.feed(Received(COORDINATOR_PEER, message))


def recover(edge: Edge, after: View, *replaced: tuple[str, int]) -> None:
    """A recovery begins, and this connection point's part of it is due."""
    edge.to_peers()
    tell(edge, Recover(after.epoch, list(after.members), after.owners, list(replaced)))
    assert edge.to_peers() == [], "until everybody serves the view nothing is said to anybody"
    tell(edge, Rebuild(after.epoch, list(replaced)))


def resume(edge: Edge, epoch: int = 2) -> None:
    tell(edge, Resume(epoch))
    edge.drain()


def changes_of(edge: Edge) -> list[tuple[Peer, list[SubscriptionChange]]]:
    """Return the changes that were sent since the last call; nothing else may have been but Renew and Rebuilt."""
    sent = edge.to_peers()
    assert {type(message) for _, message in sent} <= {ChangeSubscriptions, Renew, Rebuilt}
    return [(peer, message.changes) for peer, message in sent if isinstance(message, ChangeSubscriptions)]


def answer(edge: Edge, *numbers: int, peer: Peer = AP0) -> None:
    edge.feed(Received(peer, Changed(list(numbers), 99)))


def runs_of(edge: Edge) -> list[list[tuple[str, int, int]]]:
    """Return publisher, first and last sequence of the runs that were sent, by message."""
    return [
        [(run.publisher, run.first_sequence, run.last_sequence) for run in message.runs]
        for _, message in edge.to_peers()
        if isinstance(message, Publications)
    ]


# Publications -----------------------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_is_sent_again_in_its_order_and_as_it_was() -> None:
    edge = Edge()
    first, second = edge.login("a"), edge.login("b")
    edge.say(first, publish(1, 2), publish(3, 1, a=7))
    edge.say(second, publish(10, 3))
    edge.drain()
    before = edge.to_peers()
    edge.acknowledge(edge.key(first), 2)
    recover(edge, view(2), (MATCHER, 0))
    assert edge.to_peers() == [(AP0, Renew(2)), (COORDINATOR_PEER, Rebuilt(2))]
    edge.drain()
    assert edge.to_peers() == []
    resume(edge)
    ((peer, message),) = edge.to_peers()
    assert isinstance(message, Publications)
    assert peer == AP0
    assert [(run.publisher, run.first_sequence, run.count) for run in message.runs] == [("a", 3, 1), ("b", 10, 3)]
    ((_, sent_first),) = before
    assert isinstance(sent_first, Publications)
    assert message.runs == sent_first.runs[1:], "with the time when they were taken in"
    assert message.payload in sent_first.payload
    assert edge.machine.gauges()["sent_again"] == 4
    edge.acknowledge(edge.key(first), 3)
    edge.acknowledge(edge.key(second), 12)
    assert edge.machine.gauges()["unacknowledged_bytes"] == 0


def test_a_frame_of_which_the_beginning_is_acknowledged_is_sent_again_whole() -> None:
    edge = Edge()
    client = edge.login()
    edge.say(client, publish(1, 5))
    edge.acknowledge(edge.key(client), 3)
    edge.drain()
    recover(edge, view(2))
    resume(edge)
    assert runs_of(edge) == [[("lab", 1, 5)]]


def test_what_was_gathered_and_not_sent_is_sent_once() -> None:
    edge = Edge()
    client = edge.login()
    edge.say(client, publish(1, 2))
    recover(edge, view(2))
    resume(edge)
    assert runs_of(edge) == [[("lab", 1, 2)]]


def test_it_is_sent_again_in_messages_of_bounded_size() -> None:
    edge = Edge(small_config(batch_publications=4, publish_window=100, publish_window_bytes=4000))
    client = edge.login()
    for first in range(1, 10, 3):
        edge.say(client, publish(first, 3))
    recover(edge, view(2))
    resume(edge)
    assert runs_of(edge) == [[("lab", 1, 3), ("lab", 4, 6)], [("lab", 7, 9)]]


def test_each_client_is_sent_again_by_the_access_point_that_it_has_now() -> None:
    edge = Edge()
    clients = [edge.login(f"client {number}") for number in range(6)]
    for client in clients:
        edge.say(client, publish(1))
    after = view(2, access_points=(0, 1))
    recover(edge, after)
    edge.to_peers()
    resume(edge)
    sent = {run.client: peer for peer, message in edge.to_peers() for run in message.runs}  # type: ignore[attr-defined]
    assert sent == {edge.key(one): Peer(ACCESS_POINT, access_point_of(after, edge.key(one))) for one in clients}
    assert set(sent.values()) == {AP0, AP1}


def test_a_second_death_sends_again_what_the_first_recovery_sent() -> None:
    edge = Edge()
    client = edge.login()
    edge.say(client, publish(1, 2))
    recover(edge, view(2))
    resume(edge)
    assert runs_of(edge) == [[("lab", 1, 2)]]
    recover(edge, view(3))
    resume(edge, 3)
    assert runs_of(edge) == [[("lab", 1, 2)]]


def test_resume_of_another_view_or_said_again_does_nothing() -> None:
    edge = Edge()
    client = edge.login()
    edge.say(client, publish(1))
    edge.drain()
    resume(edge, 1)
    edge.to_peers()
    recover(edge, view(3))
    edge.to_peers()
    resume(edge, 2)
    assert edge.to_peers() == []
    resume(edge, 3)
    assert runs_of(edge) == [[("lab", 1, 1)]]
    resume(edge, 3)
    assert edge.to_peers() == []


@pytest.mark.parametrize("message", [Commit(2), Abort(3), prepare(view(3))])
def test_a_coordinator_that_goes_on_has_said_resume_in_an_earlier_life(message: Message) -> None:
    edge = Edge()
    client = edge.login()
    edge.say(client, publish(1))
    edge.drain()
    recover(edge, view(2))
    edge.to_peers()
    tell(edge, message)
    edge.drain()
    assert runs_of(edge) == [[("lab", 1, 1)]]
    resume(edge)
    assert edge.to_peers() == [], "once"


def test_a_rebuild_of_another_view_does_nothing() -> None:
    edge = Edge()
    recover(edge, view(3))
    edge.to_peers()
    tell(edge, Rebuild(2, [(MATCHER, 0)]))
    assert edge.to_peers() == []


# Subscriptions ----------------------------------------------------------------------------------------------------


def test_only_what_a_new_matcher_owns_is_sent_to_it_again() -> None:
    edge = Edge(small_config())
    after = view(2, matchers=(0, 1))
    client = edge.login()
    for number in range(3):
        edge.subscribe(client, number)
    session = edge.machine._shared.connections[client].session
    assert session is not None
    held = list(session.subscriptions.values())
    recover(edge, after, (MATCHER, 1))
    expected = [one for one in held if after.owner_of_group(key_group(one.subscription)) == 1]
    assert [one for _, changes in changes_of(edge) for one in changes] == expected
    recover(edge, view(3, matchers=(0, 1)), (MATCHER, 0), (MATCHER, 1))
    assert [one for _, changes in changes_of(edge) for one in changes] == held
    recover(edge, view(4, matchers=(0, 1)), (EXIT_POINT, 0), (ACCESS_POINT, 0), (CONNECTION_POINT, 1))
    assert changes_of(edge) == [], "the matchers have them"
    recover(edge, view(5, matchers=(0, 1)), ME)
    assert [one for _, changes in changes_of(edge) for one in changes] == held, "as the matchers sweep what was its"


def test_an_answer_of_before_the_recovery_is_none() -> None:
    """It comes late by a slow lane, and the matcher that had the change may be the one that died."""
    edge = Edge()
    edge.subscribe(edge.login(), 0)
    recover(edge, view(2), (MATCHER, 0))
    ((_, (held,)),) = changes_of(edge)
    edge.feed(Received(AP0, Changed([held.change], 1)))
    assert edge.to_peers() == [], "not rebuilt"
    edge.feed(Received(AP0, Changed([held.change], 2)))
    assert edge.to_peers() == [(COORDINATOR_PEER, Rebuilt(2))]


def test_an_updated_subscription_is_sent_as_it_is_now_and_a_closed_one_is_not() -> None:
    edge = Edge()
    client = edge.login()
    edge.subscribe(client, 0, "a > 1")
    edge.subscribe(client, 1, "a > 2")
    edge.say(client, frames.Subscribe(7, 0, "a > 9", "block"), frames.Unsubscribe(8, 1))
    ((_, sent),) = edge.to_peers()
    assert isinstance(sent, ChangeSubscriptions)
    update, closing = sent.changes
    answer(edge, update.change, closing.change)
    recover(edge, view(2), (MATCHER, 0))
    assert [one for _, changes in changes_of(edge) for one in changes] == [update]


def test_unanswered_changes_are_sent_again_first_and_under_their_numbers() -> None:
    edge = Edge()
    client = edge.login()
    edge.subscribe(client, 0)
    edge.say(client, frames.Unsubscribe(1, 0), frames.Subscribe(2, 1, "a > 3", "block"))
    sent = [change for _, message in edge.to_peers() for change in message.changes]  # type: ignore[attr-defined]
    assert [change.normal_form is None for change in sent] == [True, False]
    recover(edge, view(2), (EXIT_POINT, 0))
    assert changes_of(edge) == [(AP0, sent)]
    assert edge.heard(client) == []
    answer(edge, *[change.change for change in sent])
    assert edge.heard(client) == [frames.Done(1), frames.Done(2)]
    assert edge.to_peers() == [(COORDINATOR_PEER, Rebuilt(2))]


def test_an_answer_that_comes_again_confirms_nothing_twice() -> None:
    edge = Edge()
    client = edge.login()
    edge.say(client, frames.Subscribe(2, 1, "a > 3", "block"))
    ((_, message),) = edge.to_peers()
    (change,) = message.changes  # type: ignore[attr-defined]
    recover(edge, view(2), (MATCHER, 0))
    edge.to_peers()
    answer(edge, change.change)
    answer(edge, change.change)
    assert edge.heard(client) == [frames.Done(2)]


def test_of_a_subscription_that_is_open_no_more_nothing_is_set_again() -> None:
    """By another access point its removal was answered first; matchers forget removals in a recovery."""
    edge = Edge()
    client = edge.login()
    edge.say(client, frames.Subscribe(1, 0, "a > 1", "block"), frames.Unsubscribe(2, 0))
    opened, closed = (change for _, message in edge.to_peers() for change in message.changes)  # type: ignore[attr-defined]
    answer(edge, closed.change)
    recover(edge, view(2), (EXIT_POINT, 0))
    assert changes_of(edge) == []
    assert frames.Done(1) not in edge.heard(client)
    resume(edge)
    assert edge.heard(client) == [frames.Done(1)]
    assert opened.change not in edge.machine._changes.underway


def test_a_rebuild_goes_in_steps_and_waits_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "STEP_CHANGES", 2)
    monkeypatch.setattr(rebuilding, "UNDERWAY", 3)
    edge = Edge()
    clients = [edge.login(f"client {number}") for number in range(3)]
    for client in clients:
        for number in range(3):
            edge.subscribe(client, number)
    recover(edge, view(2), (MATCHER, 0))
    sent = [one for _, changes in changes_of(edge) for one in changes]
    assert len(sent) == 2
    assert edge.machine._changes.rebuilding is not None
    assert edge.machine._changes.rebuilding.more, "one more has room"
    edge.drain()
    sent += [one for _, changes in changes_of(edge) for one in changes]
    edge.drain()
    assert (len(sent), changes_of(edge)) == (3, []), "the window is full"
    while len(sent) < 9:
        answer(edge, sent[-1].change)
        edge.drain()
        sent += [one for _, changes in changes_of(edge) for one in changes]
    assert len({one.subscription for one in sent}) == 9
    assert edge.machine._changes.rebuilding is not None
    for one in sent:
        answer(edge, one.change)
    edge.drain()
    assert edge.to_peers() == [(COORDINATOR_PEER, Rebuilt(2))]


def test_a_rebuild_sends_what_is_there_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client leaves in the middle; of its subscriptions the rest is not sent, and all are removed behind Resume."""
    monkeypatch.setattr(rebuilding, "STEP_CHANGES", 1)
    edge = Edge()
    stays, leaves = edge.login("stays"), edge.login("leaves")
    for number in range(2):
        edge.subscribe(stays, number)
        edge.subscribe(leaves, number)
    key = edge.key(leaves)
    recover(edge, view(2), (MATCHER, 0))
    edge.drain()
    sent = [one for _, changes in changes_of(edge) for one in changes]
    edge.close(leaves)
    assert [type(message).__name__ for _, message in edge.to_peers()] == ["SessionClosed"]
    answer(edge, *[one.change for one in sent])
    for _ in range(20):
        edge.drain()
        for _, changes in changes_of(edge):
            answer(edge, *[change.change for change in changes])
    assert edge.machine._changes.rebuilding is None
    resume(edge)
    ((_, removals),) = edge.to_peers()
    assert isinstance(removals, ChangeSubscriptions)
    assert {one.subscription for one in removals.changes} == {key << 20, key << 20 | 1}
    assert all(one.normal_form is None for one in removals.changes)
    answer(edge, *[one.change for one in removals.changes])
    assert not edge.machine._changes.underway


def test_a_client_that_leaves_before_the_rebuild_is_removed_after_it() -> None:
    edge = Edge()
    leaves = edge.login("leaves")
    edge.subscribe(leaves, 0)
    edge.to_peers()
    after = view(2)
    tell(edge, Recover(2, list(after.members), after.owners, [(MATCHER, 0)]))
    edge.close(leaves)
    assert [type(message).__name__ for _, message in edge.to_peers()] == ["SessionClosed"]
    tell(edge, Rebuild(2, [(MATCHER, 0)]))
    assert changes_of(edge) == [], "others are waited for, and it is not"
    resume(edge)
    ((_, (removal,)),) = changes_of(edge)
    assert removal.normal_form is None
    answer(edge, removal.change)
    edge.drain()
    assert changes_of(edge) == [], "once"


def test_an_acknowledgement_of_before_the_recovery_is_void() -> None:
    """What it is about is sent again, and may match a subscription that the publisher opens next: it must not know."""
    edge = Edge()
    client = edge.login()
    edge.say(client, publish(1))
    edge.drain()
    stale = Acknowledge([(edge.key(client), 1, [])], [(0, 0, 0)], edge.since)
    recover(edge, view(2), (MATCHER, 0))
    edge.feed(Received(Peer(EXIT_POINT, 0), stale))
    assert edge.heard(client) == []
    resume(edge)
    edge.feed(Received(Peer(EXIT_POINT, 0), stale))
    edge.drain()
    assert edge.heard(client) == []
    edge.acknowledge(edge.key(client), 1)
    (told,) = edge.heard(client)
    assert isinstance(told, frames.Acknowledged)
    assert told.upto == 1


def test_numbers_of_changes_are_above_those_of_any_incarnation_before() -> None:
    for incarnation in (1, 7):
        edge = Edge()
        edge.machine.__init__(0, incarnation, small_config())  # type: ignore[misc]
        first = edge.machine._changes.note(1, None, None, 5, b"f")
        assert first.change >> NUMBER_BITS == incarnation


# Clients' requests ------------------------------------------------------------------------------------------------


def test_requests_wait_for_the_end_and_keep_their_order() -> None:
    edge = Edge()
    client, idle = edge.login(), edge.login("idle")
    edge.subscribe(client, 0)
    recover(edge, view(2), (MATCHER, 0))
    changes_of(edge)
    edge.say(client, publish(1), frames.Subscribe(5, 1, "a > 3", "block"), publish(2), frames.Unsubscribe(6, 0))
    edge.say(idle, frames.Pong())
    for _ in range(3):
        edge.drain()
        edge.pass_ms(50)
    assert edge.to_peers() == []
    assert edge.machine.gauges()["accepted"] == 0
    resume(edge)
    for _ in range(5):
        edge.drain()
    assert [type(message).__name__ for _, message in edge.to_peers()] == [
        "Publications",
        "ChangeSubscriptions",
        "Publications",
        "ChangeSubscriptions",
    ]
    assert edge.closed == set()


def test_what_is_no_request_of_the_cluster_does_not_wait() -> None:
    edge = Edge(small_config())
    client, session = listening(edge, receive_window=1)
    edge.deliver((1, 1, [(session, [0])]), (2, 2, [(session, [0])]))
    edge.drain()
    recover(edge, view(2), (MATCHER, 0))
    edge.say(client, frames.Consumed(1))
    edge.drain()
    assert sequences_of(edge, client) == [1, 2]


def test_a_client_may_log_in_and_out_meanwhile() -> None:
    edge = Edge()
    recover(edge, view(2))
    edge.to_peers()
    client = edge.login("new")
    edge.say(client, frames.Goodbye())
    assert client in edge.closed
    resume(edge)
    assert edge.machine.gauges()["sessions"] == 0


# Doubles ----------------------------------------------------------------------------------------------------------


def test_what_was_delivered_before_is_not_delivered_again_and_counts_as_delivered() -> None:
    edge = Edge()
    client, session = listening(edge)
    edge.deliver((1, 1, [(session, [0])]), (2, 2, [(session, [0])]))
    edge.drain()
    assert sequences_of(edge, client) == [1, 2]
    assert tokens_of(edge) == [1, 2]
    recover(edge, view(2))
    edge.to_peers()
    edge.deliver((8, 2, [(session, [0])]), (9, 3, [(session, [0])]))
    edge.drain()
    assert sequences_of(edge, client) == [3]
    assert tokens_of(edge) == [8, 9]
    assert edge.machine.gauges()["duplicates"] == 1


def test_a_double_is_left_out_for_everybody_whoever_it_matches_now() -> None:
    edge = Edge()
    one, first = listening(edge, "a")
    two, second = listening(edge, "b")
    edge.deliver((1, 1, [(first, [0])]))
    edge.deliver((2, 1, [(first, [0]), (second, [0])]), (3, 2, [(second, [0])]))
    edge.drain()
    assert (sequences_of(edge, one), sequences_of(edge, two)) == ([1], [2])


def test_another_life_of_a_publisher_begins_anew() -> None:
    edge = Edge()
    client, session = listening(edge)
    edge.deliver((1, 9, [(session, [0])]))
    again = deliver((2, 1, [(session, [0])]))
    (run,) = again.runs
    fields = {name: getattr(again, name) for name in again.__struct_fields__}
    edge.feed(Received(EP0, Deliver(**(fields | {"runs": [(run[0], run[1] + 1, *run[2:])]}))))
    edge.drain()
    assert sequences_of(edge, client) == [9, 1]


def test_a_double_waits_as_long_as_its_first_copy_waits_for_a_place() -> None:
    edge = Edge()
    client, session = listening(edge, receive_window=1)
    rows: list[Any] = [(number, number, [(session, [0])]) for number in range(1, 8)]
    for row in rows:
        edge.deliver(row)
    edge.drain()
    assert sequences_of(edge, client) == [1]
    assert tokens_of(edge) == [1, 2, 3, 4, 5], "6 and 7 have no place"
    recover(edge, view(2))
    edge.to_peers()
    assert edge.machine.gauges()["held_runs"] == 0, "whoever waits for them has forgotten it"
    edge.deliver(*[(100 + number, number, [(session, [0])]) for number in range(1, 8)])
    edge.drain()
    assert tokens_of(edge) == [], "7 of the one message has no place yet, and they share a position"
    told = []
    got = []
    for consumed in range(1, 8):
        edge.say(client, frames.Consumed(consumed))
        edge.drain()
        got += sequences_of(edge, client)
        told += tokens_of(edge)
    assert got == [2, 3, 4, 5, 6, 7]
    assert sorted(told) == [101, 102, 103, 104, 105, 106, 107]


def test_a_double_for_a_client_that_has_left_holds_nobody_up() -> None:
    edge = Edge()
    client, session = listening(edge, receive_window=1)
    for number in range(1, 8):
        edge.deliver((number, number, [(session, [0])]))
    edge.drain()
    recover(edge, view(2))
    edge.to_peers()
    edge.close(client)
    edge.to_peers()
    edge.deliver((107, 7, [(session, [0])]))
    edge.drain()
    assert tokens_of(edge) == [107]


def test_a_message_of_nothing_but_doubles_writes_nothing() -> None:
    edge = Edge()
    client, session = listening(edge)
    edge.deliver((1, 1, [(session, [0])]))
    edge.drain()
    edge.heard(client)
    edge.to_peers()
    edge.deliver((2, 1, [(session, [0])]))
    edge.drain()
    assert edge.heard(client) == []
    assert edge.to_peers() == [(EP0, Delivered([2]))]


# The rest ---------------------------------------------------------------------------------------------------------


def test_a_view_change_that_was_underway_is_forgotten() -> None:
    edge = Edge()
    client = edge.login()
    edge.say(client, publish(1))
    tell(edge, prepare(view(2, access_points=(0, 1))))
    recover(edge, view(3))
    assert edge.machine._shared.next is None
    edge.to_peers()
    resume(edge, 3)
    ((peer, _),) = edge.to_peers()
    assert peer == AP0


def test_a_connection_point_of_no_view_has_nothing_to_do_and_goes() -> None:
    edge = Edge()
    after = view(2, connection_points=(1,))
    out = edge.feed(Received(COORDINATOR_PEER, Recover(2, list(after.members), after.owners, [])))
    assert out == [Flush()]


def test_columns_of_a_share_without_its_doubles_fit() -> None:
    edge = Edge()
    client, session = listening(edge)
    edge.subscribe(client, 1)
    edge.deliver((1, 2, [(session, [0])]))
    edge.drain()
    edge.heard(client)
    edge.deliver((2, 1, [(session, [0, 1])]), (3, 2, [(session, [0])]), (4, 3, [(session, [1])]), payload=b"abc")
    edge.drain()
    (notify,) = edge.heard(client)
    assert isinstance(notify, frames.Notify)
    assert struct.unpack("<Q", notify.sequence) == (3,)
    assert (struct.unpack("<I", notify.numbers), notify.payload) == ((1,), b"abc")
    assert len(notify.runs) == 1
