"""The connection point in a view change: clients get other access points in order, or another connection point."""

from __future__ import annotations

import pytest

from cluster import frames
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    Abort,
    Changed,
    ChangeSubscriptions,
    Commit,
    Deliver,
    Delivered,
    Drain,
    Emptied,
    Ended,
    EpochEnd,
    EpochEnded,
    Flush,
    LaneUp,
    Message,
    MoveClients,
    Peer,
    Publications,
    Received,
    Retire,
    Send,
    Serve,
    ServeClients,
    SessionOpened,
    SessionTaken,
    Settled,
    Switch,
)
from cluster.serving import leaving
from cluster.view import View
from tests.unit.edge import Edge, deliver, hello, publish, small_config
from tests.unit.views import prepare, view

AP0, AP1, AP2 = (Peer(ACCESS_POINT, slot) for slot in range(3))


def next_view(*access_points: int, connection_points: tuple[int, ...] = (0,)) -> View:
    return view(2, access_points=access_points, connection_points=connection_points)


def tell(edge: Edge, message: Message, peer: Peer = COORDINATOR_PEER) -> list[tuple[Peer, str]]:
    """Hand a message over; return whom something was sent to, and what."""
    edge.sent.clear()
    edge.feed(Received(peer, message))
    return kinds(edge)


def kinds(edge: Edge) -> list[tuple[Peer, str]]:
    return [(peer, type(message).__name__) for peer, message in edge.to_peers()]


def logged_in(count: int, **options: int) -> tuple[Edge, list[int]]:
    edge = Edge(small_config(), **options)
    return edge, [edge.login(f"lab {number}") for number in range(count)]


# Access points -----------------------------------------------------------------------------------------------------


def test_where_access_points_stay_a_commit_changes_nothing() -> None:
    edge, (client,) = logged_in(1)
    assert tell(edge, prepare(next_view(0))) == []
    assert tell(edge, Commit(2)) == [(COORDINATOR_PEER, "Ended")]
    edge.say(client, publish(1))
    edge.drain()
    assert kinds(edge) == [(AP0, "Publications")]


def test_what_was_gathered_goes_the_old_way_and_what_follows_the_new_one() -> None:
    edge, clients = logged_in(3)
    for client in clients:
        edge.say(client, publish(1))
    tell(edge, prepare(next_view(1, 2)))
    edge.sent.clear()
    edge.feed(Received(COORDINATOR_PEER, Commit(2)))
    out = edge.to_peers()
    assert [(peer, type(message)) for peer, message in out] == [
        (AP0, Publications),
        (AP0, Switch),
        (AP1, Switch),
        (AP2, Switch),
        (COORDINATOR_PEER, Ended),
    ], "behind the Switch all is of the next epoch"
    assert {message.epoch for _, message in out if isinstance(message, Switch | Ended)} == {2}
    for client in clients:
        edge.say(client, publish(2))
    edge.drain()
    ways = {run.client: peer.slot for peer, one in edge.to_peers() if isinstance(one, Publications) for run in one.runs}
    assert ways == {edge.key(client): (1, 2)[edge.key(client) % 2] for client in clients}
    edge.say(clients[0], frames.Subscribe(1, 1, "a > 1", "block"))
    ((peer, change),) = edge.to_peers()
    assert isinstance(change, ChangeSubscriptions)
    assert peer.slot == ways[edge.key(clients[0])], "publications and changes keep to one way"


def test_a_change_under_way_is_answered_from_the_old_access_point() -> None:
    edge, (client,) = logged_in(1)
    edge.say(client, frames.Subscribe(7, 1, "a > 1", "block"))
    ((_, change),) = edge.to_peers()
    assert isinstance(change, ChangeSubscriptions)
    tell(edge, prepare(next_view(1)))
    tell(edge, Commit(2))
    tell(edge, Changed([change.changes[0].change], 99), AP0)
    assert edge.heard(client) == [frames.Done(7)]


def test_who_logs_in_after_the_commit_gets_a_new_access_point() -> None:
    edge, _ = logged_in(0)
    tell(edge, prepare(next_view(1)))
    before = edge.login("before")
    edge.say(before, publish(1))
    edge.drain()
    assert kinds(edge) == [(AP0, "Publications")]
    tell(edge, Commit(2))
    after = edge.login("after")
    edge.say(after, publish(1))
    edge.drain()
    assert kinds(edge) == [(AP1, "Publications")]


def test_a_commit_that_is_said_again_is_answered_and_switches_nothing() -> None:
    edge, _ = logged_in(1)
    tell(edge, prepare(next_view(1)))
    tell(edge, Commit(2))
    assert tell(edge, Commit(2)) == [(COORDINATOR_PEER, "Ended")]
    assert tell(edge, Retire(2)) == [(COORDINATOR_PEER, "Settled")]
    assert tell(edge, Retire(2)) == [(COORDINATOR_PEER, "Settled")]
    assert tell(edge, Commit(2)) == [(COORDINATOR_PEER, "Ended")]


def test_after_an_abort_the_next_view_is_forgotten() -> None:
    edge, (client,) = logged_in(1)
    tell(edge, prepare(next_view(1)))
    assert tell(edge, Abort(2)) == [(COORDINATOR_PEER, "Settled")]
    edge.say(client, publish(1))
    edge.drain()
    assert kinds(edge) == [(AP0, "Publications")]
    tell(edge, prepare(view(3, access_points=(2,))))
    assert tell(edge, Commit(3))[-2:] == [(AP2, "Switch"), (COORDINATOR_PEER, "Ended")]


def test_the_end_of_an_epoch_is_answered_to_each_exit_point_that_asks() -> None:
    edge, _ = logged_in(0)
    for slot in (0, 3):
        edge.feed(Received(Peer(EXIT_POINT, slot), EpochEnd(2)))
        assert edge.to_peers()[-1] == (Peer(EXIT_POINT, slot), EpochEnded(2))


# A connection point that is to leave -------------------------------------------------------------------------------


def test_clients_are_asked_to_move_and_go_on_meanwhile() -> None:
    edge, (publisher, subscriber) = logged_in(2)
    edge.subscribe(subscriber, 1)
    assert tell(edge, MoveClients(["host:1", "host:2"], 1)) == []
    # Not all of them to the first: clients try addresses in order.
    assert edge.heard(publisher) == [frames.Move(["host:1", "host:2"])]
    assert edge.heard(subscriber) == [frames.Move(["host:2", "host:1"])]
    assert tell(edge, MoveClients(["host:1", "host:2"], 1)) == []
    assert edge.heard(publisher) == [], "asked once"
    assert tell(edge, MoveClients(["host:3"], 2)) == []
    assert edge.heard(publisher) == [frames.Move(["host:3"])], "and again when it is another place"
    edge.say(publisher, publish(1))
    edge.drain()
    assert kinds(edge) == [(AP0, "Publications")]
    edge.heard(subscriber)
    edge.deliver((1, 1, [(edge.session_number(subscriber), [1])]))
    edge.drain()
    (notify,) = edge.heard(subscriber)
    assert isinstance(notify, frames.Notify)


def test_clients_are_asked_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "MOVING_AT_ONCE", 3)
    edge, clients = logged_in(6)
    large, *_ = clients
    for number in range(3):
        edge.subscribe(large, number)
    asked: set[int] = set()

    def asked_now() -> list[int]:
        new = [place for place, client in enumerate(clients) if place not in asked and edge.heard(client)]
        asked.update(new)
        return new

    tell(edge, MoveClients(["host:1"], 1))
    assert asked_now() == [0], "one goes, however much it holds"
    edge.say(clients[3], frames.Goodbye())
    edge.say(clients[1], publish(1))
    assert asked_now() == []
    edge.say(large, frames.Moved())
    assert asked_now() == [1, 2, 4], "as many as there is room for, of those who are there"
    edge.pass_ms(1000)
    assert asked_now() == []
    edge.pass_ms(100)
    assert asked_now() == [5], "they were waited for long enough"


def test_one_that_stays_after_all_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "MOVING_AT_ONCE", 1)
    edge, (first, second) = logged_in(2)
    tell(edge, MoveClients(["host:1"], 1))
    edge.feed(Received(COORDINATOR_PEER, Serve(1)))
    edge.heard(first)
    edge.say(first, frames.Goodbye())
    edge.pass_ms(5000)
    assert edge.heard(second) == []
    tell(edge, MoveClients(["host:1"], 2))
    assert edge.heard(second) == [frames.Move(["host:1"])]


def test_nobody_is_let_in_where_clients_are_to_leave() -> None:
    edge, _ = logged_in(1)
    tell(edge, MoveClients(["host:1"], 1))
    late = edge.connect()
    edge.say(late, hello("late"))
    assert edge.bye(late) == frames.Bye("shutdown", "this connection point is about to leave")


def test_it_is_empty_when_the_last_client_has_gone_and_its_subscriptions_with_it() -> None:
    edge, (first, second) = logged_in(2)
    edge.subscribe(first, 1)
    tell(edge, MoveClients(["host:1"], 1))
    edge.say(second, frames.Goodbye())
    assert (COORDINATOR_PEER, "Emptied") not in kinds(edge)
    edge.say(first, frames.Goodbye())
    out = edge.to_peers()
    assert not any(isinstance(message, Emptied) for _, message in out)
    (change,) = [message for _, message in out if isinstance(message, ChangeSubscriptions)]
    assert tell(edge, Changed([change.changes[0].change], 99), AP0) == [(COORDINATOR_PEER, "Emptied")]


def test_where_nobody_is_it_is_empty_at_once() -> None:
    edge, _ = logged_in(0)
    assert tell(edge, MoveClients(["host:1"], 1)) == [(COORDINATOR_PEER, "Emptied")]


def test_those_that_stay_are_disconnected_in_the_end() -> None:
    edge, (client,) = logged_in(1)
    tell(edge, MoveClients(["host:1"], 1))
    assert (COORDINATOR_PEER, "Emptied") in tell(edge, Drain())
    assert edge.bye(client).code == "shutdown"


@pytest.mark.parametrize("same_instance", [True, False])
def test_a_client_that_moves_has_two_sessions_for_a_while(same_instance: bool) -> None:
    edge, (client,) = logged_in(1)
    tell(edge, MoveClients(["host:1"], 1))
    edge.heard(client)
    tell(edge, SessionTaken(edge.key(client), same_instance))
    if same_instance:
        assert edge.heard(client) == [], "it closes the old one itself, when it has taken what is there"
        edge.say(client, publish(1))
        edge.drain()
        assert kinds(edge) == [(AP0, "Publications")]
    else:
        assert edge.bye(client).code == "taken_over", "another process of that name does not move, it takes over"


def test_a_connection_point_that_stays_after_all_lets_clients_in_again() -> None:
    edge, (client,) = logged_in(1)
    tell(edge, MoveClients(["host:1"], 1))
    assert ServeClients() in edge.feed(Received(COORDINATOR_PEER, Serve(1)))
    edge.login("another")
    edge.heard(client)
    edge.feed(Received(COORDINATOR_PEER, SessionTaken(edge.key(client), True)))
    assert edge.bye(client).code == "moved"
    assert not any(isinstance(message, Emptied) for _, message in edge.to_peers())


def test_a_leaver_goes_when_all_it_sent_is_taken() -> None:
    edge, _ = logged_in(0, slot=1)
    tell(edge, MoveClients(["host:1"], 1))
    tell(edge, prepare(next_view(0)))
    tell(edge, Commit(2))
    out = edge.feed(Received(COORDINATOR_PEER, Retire(2)))
    assert out == [Send(COORDINATOR_PEER, Settled(2)), Flush()]


def test_a_leaver_owes_no_answer_when_it_goes() -> None:
    """A publisher's acknowledgement waits for it, be the subscriber long gone."""
    edge, _ = logged_in(0, slot=1)
    tell(edge, MoveClients(["host:1"], 1))
    tell(edge, prepare(next_view(0)))
    tell(edge, Commit(2))
    message = deliver((5, 1, [(77, [1])]))
    assert isinstance(message, Deliver)
    edge.feed(Received(Peer(EXIT_POINT, 0), message))
    out = edge.feed(Received(COORDINATOR_PEER, Retire(2)))
    assert out[-2:] == [Send(Peer(EXIT_POINT, 0), Delivered([5])), Flush()]


def test_one_that_stays_does_not_leave() -> None:
    edge, _ = logged_in(0)
    tell(edge, prepare(next_view(0, connection_points=(0, 1))))
    tell(edge, Commit(2))
    assert edge.feed(Received(COORDINATOR_PEER, Retire(2))) == [Send(COORDINATOR_PEER, Settled(2))]


def test_a_new_coordinator_is_told_who_is_logged_in() -> None:
    edge, clients = logged_in(2)
    edge.sent.clear()
    edge.feed(LaneUp(COORDINATOR_PEER))
    opened = [message for _, message in edge.to_peers() if isinstance(message, SessionOpened)]
    assert sorted(one.client for one in opened) == sorted(edge.key(client) for client in clients)
    edge.feed(LaneUp(AP0))
    assert edge.to_peers() == []
