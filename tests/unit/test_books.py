"""The books of publications: at each moment every accepted one is in exactly one place."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from cluster.config import Config, Layers
from cluster.figures import series_of
from cluster.language import encode_normal, parse
from cluster.matcher import Matcher
from cluster.measures import Measures
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    EXIT_POINT,
    MATCHER,
    Acknowledge,
    ApplyChanges,
    Peer,
    Received,
    Recover,
    SubscriptionChange,
)
from cluster.serving.books import Books
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation
from tests.unit.edge import Edge, publish

OUTCOMES = ("outcome_matched", "outcome_unmatched", "outcome_rejected", "outcome_repeated", "abandoned", "in_flight")


def books(gauges: dict[str, int]) -> tuple[int, ...]:
    """Return what was accepted, which is the sum of the rest, and OUTCOMES."""
    found = tuple(gauges[name] for name in OUTCOMES)
    assert gauges["accepted"] == sum(found)
    assert min(found) >= 0
    return gauges["accepted"], *found


def answer(edge: Edge, key: int, upto: int, outcome: tuple[int, int], rejected: int = 0) -> None:
    """An exit point acknowledges. outcome: matched, repeated; rejected: so many of the last."""
    refused = [(upto - place, "bad") for place in range(rejected)]
    outcomes = [(outcome[0], rejected, outcome[1])]
    edge.feed(Received(Peer(EXIT_POINT, 0), Acknowledge([(key, upto, refused)], outcomes, edge.since)))


def test_each_acknowledgement_says_what_became_of_its_publications() -> None:
    edge = Edge()
    connection = edge.login()
    key = edge.key(connection)
    edge.say(connection, publish(1, 5))
    assert books(edge.machine.gauges()) == (5, 0, 0, 0, 0, 0, 5)
    answer(edge, key, 3, (2, 0))
    assert books(edge.machine.gauges()) == (5, 2, 1, 0, 0, 0, 2)
    answer(edge, key, 5, (0, 1), rejected=1)
    assert books(edge.machine.gauges()) == (5, 2, 1, 1, 1, 0, 0)
    answer(edge, key, 5, (2, 0))
    assert books(edge.machine.gauges()) == (5, 2, 1, 1, 1, 0, 0), "again, after a recovery"


def test_what_a_publisher_has_left_behind_is_entered_when_it_is_told() -> None:
    edge = Edge()
    connection = edge.login()
    key = edge.key(connection)
    edge.say(connection, publish(1, 6))
    answer(edge, key, 2, (2, 0))
    edge.close(connection)
    assert books(edge.machine.gauges()) == (6, 2, 0, 0, 0, 0, 4)
    answer(edge, key, 4, (1, 0))
    assert books(edge.machine.gauges()) == (6, 3, 1, 0, 0, 0, 2)
    answer(edge, key, 4, (1, 0))
    answer(edge, key, 6, (2, 0))
    answer(edge, key, 6, (2, 0))
    answer(edge, key + 1, 9, (2, 0))
    assert books(edge.machine.gauges()) == (6, 5, 1, 0, 0, 0, 0), "neither again, nor for one that was never here"


def test_if_a_slice_dies_first_nobody_will_tell() -> None:
    edge = Edge()
    gone, stays = edge.login("gone"), edge.login("stays")
    edge.say(gone, publish(1, 3))
    edge.say(stays, publish(1, 2))
    gone_key, key = edge.key(gone), edge.key(stays)
    edge.close(gone)
    view = edge.machine._shared.view
    assert view is not None
    edge.feed(Received(COORDINATOR_PEER, Recover(2, list(view.members), view.owners, [(MATCHER, 0)])))
    assert books(edge.machine.gauges()) == (5, 0, 0, 0, 0, 3, 2)
    edge.say(stays, publish(3, 1))
    leaves = edge.login("leaves")
    edge.close(leaves)
    answer(edge, gone_key, 3, (3, 0))
    answer(edge, key, 2, (1, 0))
    assert books(edge.machine.gauges()) == (5, 1, 1, 0, 0, 3, 0)


def test_more_than_was_asked_about_is_never_entered() -> None:
    rng = random.Random(3)
    counters = {"accepted": 0}
    entered = Books(counters)
    for _ in range(300):
        count = rng.randrange(1, 20)
        counters["accepted"] += count
        entered.enter(count, (rng.randrange(25), rng.randrange(25), rng.randrange(25)))
        assert entered.in_flight == 0
        assert min(counters.values()) >= 0


@conversation
async def test_the_connection_points_and_the_exit_points_come_to_the_same() -> None:
    """While publications flow, views change and a publisher leaves, no scrape finds the books open."""
    rng = random.Random(11)
    layers = Layers(connection_points=2, access_points=2, matchers=2, exit_points=2)
    async with LocalCluster(config=Config(layers=layers)) as local:
        roles = local._assembly.roles

        def gauges(layer: str) -> list[dict[str, int]]:
            found = [role.gauges() for peer, role in list(roles.items()) if peer.layer == layer]
            for one in found:
                if layer == CONNECTION_POINT:
                    books(one)
                else:
                    assert one["released"] == one["matched"] + one["unmatched"] + one["rejected"]
            return found

        async with local.connect("subscriber") as subscriber:
            await subscriber.subscribe("n >= 50", policy="drop_oldest")
            publishers = [await local.connect(f"p{number}") for number in range(3)]
            scaling: asyncio.Task[Any] = asyncio.create_task(local.admin.scale(matchers=3, exit_points=3))
            published = 0
            for _ in range(60):
                publisher = rng.choice(publishers)
                await publisher.publish_many([{"n": rng.randrange(100)} for _ in range(rng.randrange(1, 20))])
                gauges(CONNECTION_POINT)
                gauges(EXIT_POINT)
            await scaling
            published = sum(one["accepted"] for one in gauges(CONNECTION_POINT))
            for publisher in publishers:
                await publisher.close()
            while sum(one["in_flight"] for one in gauges(CONNECTION_POINT)):
                await asyncio.sleep(0.01)
            doors, exits = gauges(CONNECTION_POINT), gauges(EXIT_POINT)
            assert published > 300
            for outcome, released in (
                ("outcome_matched", "matched"),
                ("outcome_unmatched", "unmatched"),
                ("outcome_rejected", "rejected"),
                ("outcome_repeated", "duplicates"),
            ):
                assert sum(one[outcome] for one in doors) == sum(one[released] for one in exits)
            assert sum(one["outcome_matched"] for one in doors) > 0


def test_a_scrape_is_as_much_work_for_many_subscriptions_as_for_few() -> None:
    """Nothing in it may go through subscriptions: they are counted as they come and go."""

    def calls(subscriptions: int) -> int:
        matcher = Matcher(0, 1, Config())
        edge = Edge()
        matcher.handle(Received(COORDINATOR_PEER, edge.machine._shared.view.install()))  # type: ignore[union-attr]
        normal = encode_normal(parse("a > 1").normal_form)
        changes = [SubscriptionChange(number + 1, number, normal) for number in range(subscriptions)]
        matcher.handle(Received(Peer("access_point", 0), ApplyChanges(1, 0, changes)))
        connection = edge.login()
        for number in range(min(subscriptions // 1000, 3)):
            edge.subscribe(connection, number)
        for machine in (matcher, edge.machine):
            machine.gauges()  # what is computed once
        count = 0

        def watch(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        measures = {layer: Measures(layer, 1000) for layer in (MATCHER, CONNECTION_POINT)}
        sys.setprofile(watch)
        try:
            found = list(series_of(MATCHER, 0, matcher.gauges(), measures[MATCHER].histograms()))
            found += series_of(CONNECTION_POINT, 0, edge.machine.gauges(), measures[CONNECTION_POINT].histograms())
        finally:
            sys.setprofile(None)
        held = {one.labels[0]: one.value for one in found if one.metric.name == "kittiwake_subscriptions"}
        assert held == {MATCHER: subscriptions, CONNECTION_POINT: min(subscriptions // 1000, 3)}
        return count

    assert calls(3000) <= calls(10) + 20
