"""Subscriptions at the connection point: confirmed when they hold, refused with position and limit, ended for good."""

from __future__ import annotations

import json

import pytest

from cluster import frames, parse
from cluster.config import Config
from cluster.language import decode_normal
from cluster.messages import (
    ACCESS_POINT,
    COORDINATOR_PEER,
    Changed,
    ChangeSubscriptions,
    Peer,
    Publications,
    Received,
    SessionClosed,
    SubscriptionChange,
    subscription_id,
)
from tests.unit.edge import Edge, hello, publish

ACCESS = Peer(ACCESS_POINT, 0)


def changes_of(edge: Edge) -> list[SubscriptionChange]:
    """Return the changes that were sent since the last call."""
    return [
        change
        for _, message in edge.to_peers()
        if isinstance(message, ChangeSubscriptions)
        for change in message.changes
    ]


def test_a_subscription_is_confirmed_when_every_owner_has_it() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Subscribe(17, 3, "no2 > 40", "block"))
    assert edge.heard(connection) == []
    (change,) = changes_of(edge)
    assert change.subscription == subscription_id(edge.key(connection), 3)  # type: ignore[arg-type]
    assert change.normal_form is not None
    assert decode_normal(change.normal_form) == parse("no2 > 40").normal_form
    edge.feed(Received(ACCESS, Changed([change.change], 99)))
    assert edge.heard(connection) == [frames.Done(17)]


def test_the_json_spelling_is_taken_behind_a_brace() -> None:
    edge = Edge()
    connection = edge.login()
    spelling = parse("no2 > 40 and station starts_with 'Pza'").to_json()
    edge.say(connection, frames.Subscribe(1, 0, json.dumps(spelling), "block"))
    (change,) = changes_of(edge)
    assert change.normal_form is not None
    assert decode_normal(change.normal_form) == parse("no2 > 40 and station starts_with 'Pza'").normal_form


def test_a_change_keeps_its_place_among_the_publications() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, publish(1), frames.Subscribe(1, 0, "a > 0", "block"), publish(2), frames.Unsubscribe(2, 0))
    edge.say(connection, publish(3))
    edge.drain()
    kinds = [type(message) for _, message in edge.to_peers()]
    assert kinds == [Publications, ChangeSubscriptions, Publications, ChangeSubscriptions, Publications]


def test_subscribing_an_open_number_replaces_its_filter_in_one_change() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0, "a > 1")
    edge.say(connection, frames.Subscribe(5, 0, "a > 2", "block"))
    (change,) = changes_of(edge)
    assert change.normal_form is not None
    assert decode_normal(change.normal_form) == parse("a > 2").normal_form
    assert edge.machine.gauges()["subscriptions"] == 1


@pytest.mark.parametrize(
    ("text", "position", "limit"),
    [
        ("a >", 3, None),
        ("a > 1 and ", 10, None),
        ("a > 1 or or b", 9, None),
        ("b between 5 and 2", 10, None),
        ("a in ()", 6, None),
        (" or ".join(["a > 1"] * 65), None, 64),
        ("x" * 8193, None, 8192),
        ("{", None, None),
        ('{"no": "filter"}', None, None),
        ("{" + '"a":' * 3000, None, 8192),
        ("[" * 1000, 0, None),
    ],
)
def test_a_bad_filter_is_refused_with_its_position_or_limit(text: str, position: int | None, limit: int | None) -> None:
    edge = Edge(Config())  # the usual limits
    connection = edge.login()
    edge.say(connection, frames.Subscribe(9, 0, text, "block"))
    (refused,) = edge.heard(connection)
    assert isinstance(refused, frames.Refused)
    assert (refused.request, refused.code) == (9, "filter")
    assert refused.reason
    if position is not None:
        assert refused.position == position
    if limit is not None:
        assert refused.limit == limit
    assert edge.to_peers() == []
    assert connection not in edge.closed
    assert edge.machine.gauges()["subscriptions"] == 0


def test_a_refused_update_leaves_the_old_filter_in_force() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0)
    edge.say(connection, frames.Subscribe(2, 0, "a >", "block"), frames.Subscribe(3, 0, "a > 1", "latest"))
    assert [frame.code for frame in edge.heard(connection)] == ["filter", "policy"]  # type: ignore[union-attr]
    assert edge.to_peers() == []
    edge.deliver((1, 1, [(edge.session_number(connection), [0])]))
    edge.drain()
    assert [type(frame) for frame in edge.heard(connection)] == [frames.Notify]


def test_an_unknown_policy_is_refused_and_not_echoed_at_length() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Subscribe(1, 0, "a > 1", "y" * 3000))
    (refused,) = edge.heard(connection)
    assert isinstance(refused, frames.Refused)
    assert refused.code == "policy"
    assert "block, drop_oldest, drop_newest, latest_per_key(attribute), disconnect" in refused.reason
    assert len(refused.reason) < 130


def test_a_malformed_policy_is_refused_with_place_and_limit() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Subscribe(1, 0, "a > 1", "latest_per_key()"))
    edge.say(connection, frames.Subscribe(2, 0, "a > 1", f"latest_per_key({'x' * 300})"))
    empty, long = edge.heard(connection)
    assert empty == frames.Refused(1, "policy", "policy latest_per_key: expected an attribute's name", 15, None)
    reason = "policy latest_per_key: an attribute's name of more than 256 bytes"
    assert long == frames.Refused(2, "policy", reason, 15, 256)
    assert edge.to_peers() == []
    edge.say(connection, frames.Subscribe(3, 0, "a > 1", "latest_per_key(`in`)"))
    assert edge.heard(connection) == []
    assert len(edge.to_peers()) == 1


def test_too_many_subscriptions_are_refused_with_the_limit() -> None:
    edge = Edge()
    connection = edge.login()
    for number in range(3):
        edge.subscribe(connection, number)
    edge.say(connection, frames.Subscribe(7, 3, "a > 1", "block"))
    (refused,) = edge.heard(connection)
    assert refused == frames.Refused(7, "too_many", "3 subscriptions are open", None, 3)
    edge.subscribe(connection, 2, "a > 5")  # one that is open may be replaced
    edge.say(connection, frames.Unsubscribe(8, 0))
    edge.say(connection, frames.Subscribe(9, 3, "a > 1", "block"))
    edge.confirm_changes()
    assert edge.heard(connection) == [frames.Done(8), frames.Done(9)]


@pytest.mark.parametrize("number", [-1, 1 << 20])
def test_a_number_out_of_range_is_malformed(number: int) -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Subscribe(1, number, "a > 1", "block"))
    assert edge.bye(connection).code == "malformed"


def test_the_largest_number_is_taken() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, (1 << 20) - 1, policy="drop_oldest")


def test_closing_what_is_not_open_is_done_at_once() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Unsubscribe(4, 0), frames.Unsubscribe(5, -1), frames.Unsubscribe(6, 1 << 40))
    assert edge.heard(connection) == [frames.Done(4), frames.Done(5), frames.Done(6)]
    assert edge.to_peers() == []


def test_a_close_is_done_when_the_owner_has_removed_it() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0)
    edge.say(connection, frames.Unsubscribe(2, 0))
    assert edge.heard(connection) == []
    (change,) = changes_of(edge)
    assert change.normal_form is None
    edge.feed(Received(ACCESS, Changed([change.change], 99)))
    assert edge.heard(connection) == [frames.Done(2)]


def test_until_done_a_closing_subscription_is_served() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0)
    edge.say(connection, frames.Unsubscribe(2, 0))
    edge.deliver((1, 1, [(edge.session_number(connection), [0])]))
    edge.drain()
    assert [type(frame) for frame in edge.heard(connection)] == [frames.Notify]


def test_after_done_nothing_of_it_is_delivered() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0)
    edge.subscribe(connection, 1)
    session = edge.session_number(connection)
    edge.say(connection, frames.Unsubscribe(2, 0))
    edge.deliver((1, 1, [(session, [0])]), (2, 2, [(session, [0, 1])]))  # still waits for the end of the round
    edge.confirm_changes()
    edge.deliver((3, 3, [(session, [0])]), (4, 4, [(session, [0, 1])]))
    edge.drain()
    done, *notifies = edge.heard(connection)
    assert done == frames.Done(2)
    assert [(frame.matches, frame.numbers) for frame in notifies] == [  # type: ignore[union-attr]
        (b"\1\0\0\0", b"\1\0\0\0")
    ] * 2
    assert edge.machine.gauges()["queued"] == 0
    assert edge.machine.gauges()["dropped"] == 0


def test_closing_what_others_wait_for_lets_them_go_on() -> None:
    """A slow subscriber's queue is full of a subscription that it closes: its publishers are free at once."""
    edge = Edge()
    connection = edge.login("slow", receive_window=1)
    edge.subscribe(connection, 0)
    session = edge.session_number(connection)
    for token in range(1, 11):
        edge.deliver((token, token, [(session, [0])]))
        edge.drain()
    delivered = [token for _, message in edge.to_peers() for token in message.tokens]  # type: ignore[attr-defined]
    assert delivered == [1, 2, 3, 4, 5], "one is sent, four wait within the limit"
    edge.say(connection, frames.Unsubscribe(2, 0))
    edge.confirm_changes()
    edge.drain()
    ((_, message),) = edge.to_peers()
    assert message.tokens == [6, 7, 8, 9, 10]  # type: ignore[attr-defined]


def test_a_number_may_be_used_again_after_done() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0)
    edge.say(connection, frames.Unsubscribe(2, 0))
    edge.confirm_changes()
    edge.heard(connection)
    edge.subscribe(connection, 0, "b > 1")
    edge.deliver((1, 1, [(edge.session_number(connection), [0])]))
    edge.drain()
    assert [type(frame) for frame in edge.heard(connection)] == [frames.Notify]


def test_requests_that_come_together_go_on_together_and_none_overtakes_a_publication() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(
        connection,
        frames.Subscribe(0, 0, "a > 1", "block"),
        frames.Subscribe(1, 1, "a > 2", "block"),
        publish(1),
        frames.Subscribe(2, 2, "a > 3", "block"),
    )
    sent = [message for _, message in edge.to_peers()]
    assert [type(message) for message in sent] == [ChangeSubscriptions, Publications, ChangeSubscriptions]
    counts = [len(message.changes) for message in sent if isinstance(message, ChangeSubscriptions)]
    assert counts == [2, 1]


def test_the_subscriptions_of_a_client_that_is_gone_are_removed() -> None:
    edge = Edge()
    connection = edge.login()
    key = edge.key(connection)
    for number in (2, 0):
        edge.subscribe(connection, number)
    edge.say(connection, publish(1))
    edge.close(connection)
    sent = edge.to_peers()
    kinds = [type(message) for _, message in sent]
    assert kinds == [Publications, SessionClosed, ChangeSubscriptions]
    changes = sent[2][1].changes  # type: ignore[attr-defined]
    assert [(change.subscription, change.normal_form) for change in changes] == [
        (subscription_id(key, number), None)  # type: ignore[arg-type]
        for number in (0, 2)
    ]
    edge.feed(Received(ACCESS, Changed([change.change for change in changes], 99)))
    assert not edge.machine._changes.underway


def test_an_answer_to_a_request_of_an_ended_session_is_dropped() -> None:
    edge = Edge()
    connection = edge.login()
    edge.say(connection, frames.Subscribe(1, 0, "a > 1", "block"))
    (change,) = changes_of(edge)
    edge.close(connection)
    again = edge.connect()
    edge.say(again, hello())
    edge.heard(again)
    edge.feed(Received(ACCESS, Changed([change.change], 99)))
    assert edge.heard(again) == []
    assert [peer for peer, _ in edge.to_peers()].count(COORDINATOR_PEER) == 2
