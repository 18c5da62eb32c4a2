"""What clients that have gone had subscribed to is removed a little at a time, and all of it."""

from __future__ import annotations

import pytest

from cluster import frames
from cluster.config import Config
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    MATCHER,
    Changed,
    ChangeSubscriptions,
    Emptied,
    MoveClients,
    Peer,
    Received,
    SubscriptionChange,
    client_key,
    subscription_id,
)
from cluster.serving.changes import CHANGES_UNDERWAY, REMOVALS_UNDERWAY
from cluster.serving.gathering import MESSAGE_CHANGES
from tests.unit.edge import Edge
from tests.unit.test_connection_point_recovery import recover, resume
from tests.unit.views import view

ACCESS = Peer(ACCESS_POINT, 0)
HELD = REMOVALS_UNDERWAY + 300
"""Subscriptions of each client."""


def crowd(*names: str, held: int = HELD) -> tuple[Edge, list[int], list[int]]:
    """Return a connection point, its clients, each with so many subscriptions, and the ids of all of these."""
    edge = Edge(Config())
    clients = [edge.login(name) for name in names]
    ids = []
    for client in clients:
        key = client_key(0, edge.session_number(client))
        for number in range(held):
            edge.drain()
            edge.subscribe(client, number)
            ids.append(subscription_id(key, number))
    edge.to_peers()
    assert edge.machine.gauges()["changes_underway"] == 0
    return edge, clients, ids


def sent(edge: Edge) -> list[SubscriptionChange]:
    """Return the changes that were sent since the last call."""
    messages = [message for _, message in edge.to_peers() if isinstance(message, ChangeSubscriptions)]
    assert all(0 < len(message.changes) <= MESSAGE_CHANGES for message in messages)
    return [change for message in messages for change in message.changes]


def answer(edge: Edge, changes: list[SubscriptionChange]) -> None:
    edge.feed(Received(ACCESS, Changed([change.change for change in changes], 99)))
    edge.drain()


def remove_all(edge: Edge, first: list[SubscriptionChange]) -> list[int]:
    """Answer until nothing more is sent; return what was removed, in that order."""
    removed: list[int] = []
    changes = first
    while changes:
        assert all(change.normal_form is None for change in changes)
        assert edge.machine.gauges()["changes_underway"] <= REMOVALS_UNDERWAY
        removed += [change.subscription for change in changes]
        half = len(changes) // 2
        answer(edge, changes[:half])
        more = sent(edge)
        assert len(more) <= half, "as many as were answered"
        answer(edge, changes[half:])
        changes = more + sent(edge)
    return removed


def test_what_many_leave_behind_at_once_is_removed_in_portions_and_all_of_it() -> None:
    edge, clients, ids = crowd("a", "b", "c")
    for client in clients:
        edge.close(client)
    edge.drain()
    first = sent(edge)
    assert len(first) == REMOVALS_UNDERWAY
    edge.drain()
    assert sent(edge) == [], "not before some are answered"
    assert remove_all(edge, first) == ids
    assert edge.machine._changes.settled


def test_others_subscribe_while_it_is_removed() -> None:
    edge, clients, _ = crowd("a")
    other = edge.login("other")
    edge.close(clients[0])
    edge.drain()
    removals = sent(edge)
    edge.say(other, frames.Subscribe(1, 0, "a > 1", "block"))
    (change,) = sent(edge)
    assert change.normal_form is not None
    assert len(removals) < CHANGES_UNDERWAY // 2
    answer(edge, [change])
    assert frames.Done(1) in edge.heard(other)


@pytest.mark.parametrize("held", [HELD, REMOVALS_UNDERWAY, 2 * REMOVALS_UNDERWAY, 1])
def test_a_connection_point_is_empty_when_the_last_is_removed(held: int) -> None:
    edge, clients, ids = crowd("a", "b", held=held)
    edge.feed(Received(COORDINATOR_PEER, MoveClients(["host:1"], 1)))
    for client in clients:
        edge.close(client)
    emptied = 0
    changes = removed = sent(edge)
    while changes:
        assert not emptied
        edge.feed(Received(ACCESS, Changed([change.change for change in changes], 99)))
        edge.drain()
        messages = edge.to_peers()
        emptied = sum(isinstance(message, Emptied) for _, message in messages)
        changes = [
            one for _, message in messages if isinstance(message, ChangeSubscriptions) for one in message.changes
        ]
        removed = removed + changes
    assert [change.subscription for change in removed] == ids
    assert emptied == 1


def test_a_recovery_in_between_loses_none() -> None:
    """What was sent and not answered is sent again in it, under the same number; the rest comes after it."""
    edge, clients, ids = crowd("a", "b")
    for client in clients:
        edge.close(client)
    first = sent(edge)
    recover(edge, view(2), (MATCHER, 0))
    again = sent(edge)
    assert again == first
    answer(edge, again)
    assert sent(edge) == [], "in a recovery no more than that"
    resume(edge)
    assert remove_all(edge, sent(edge)) == ids[len(first) :]
    assert edge.machine._changes.settled
