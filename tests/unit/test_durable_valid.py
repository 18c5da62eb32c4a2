"""What is valid, to the subscriptions of a durable session: the queue alone, and the real machines."""

from __future__ import annotations

from typing import Any

import msgpack

from cluster.config import Durable
from cluster.durable import RESERVED
from cluster.frames import GIVEN, REDELIVERED
from cluster.initial import Initial, admitted
from cluster.messages import CONNECTION_POINT, Peer, ValidPublication
from cluster.ranges import Ranges
from cluster.testing import LocalCluster
from tests.properties.test_durable import BIG, Home, chunk
from tests.unit.conversation import conversation
from tests.unit.test_durable_cluster import crash, cut, durable, gauge, take, until

P = ("p", 3)


def valid(*sequences: int, settled: bool = True) -> list[ValidPublication]:
    """Return publications of P."""
    return [ValidPublication(*P, one, 7, None, None, settled, msgpack.packb({"n": one})) for one in sequences]


def served(config: Durable = BIG, number: int = 0) -> tuple[Home, Initial]:
    """Return a connected session, and what its subscription is given."""
    home = Home(config)
    home.attach()
    initial = Initial(number, b"normal")
    home.session.serve(number, initial)
    return home, initial


def sent(home: Home) -> list[tuple[int, int]]:
    """Return (sequence, bits) of what is sent."""
    return [
        (entry.sequence, REDELIVERED * again | GIVEN * entry.given)
        for portion in home.session.take()
        for entry, again in zip(portion.entries, portion.again, strict=True)
    ]


def test_what_is_live_comes_behind_what_is_given() -> None:
    home, _ = served()
    home.session.push(chunk(8, 2))
    home.session.give(0, valid(3, 5))
    assert sent(home) == []
    home.sync()
    assert sent(home) == [(3, GIVEN), (5, GIVEN)]
    home.session.check()
    home.session.give(0, valid(6))
    home.session.served(0)
    assert sent(home) == [], "not on disk"
    home.sync()
    assert sent(home) == [(6, GIVEN), (8, 0), (9, 0)]
    home.session.check()
    assert home.session.consume(RESERVED + 2)
    assert home.session.upto == RESERVED + 2
    assert home.session.unsettled == 0


def test_two_are_served_one_behind_the_other() -> None:
    home, _ = served()
    home.session.push(chunk(20, 1))
    home.session.serve(1, Initial(1, b"normal"))
    home.session.push(chunk(21, 1))
    home.session.give(1, valid(4))
    home.session.served(1)
    home.session.give(0, valid(3))
    home.sync()
    assert sent(home) == [(3, GIVEN)]
    home.session.served(0)
    home.sync()
    assert sent(home) == [(20, 0), (4, GIVEN), (21, 0)]
    home.session.check()


def test_a_later_life_goes_on_where_this_one_was() -> None:
    home, initial = served()
    initial.upto = (*P, 5)
    initial.resume([(*P, [5])])
    home.session.give(0, valid(3) + valid(5, settled=False))
    home.session.push(chunk(8, 2))
    home.sync()
    assert sent(home) == [(3, GIVEN), (5, GIVEN)]
    home.crash()
    home.session.check()
    again = home.session.serving[0]
    assert again.upto == (*P, 5)
    assert again.given() == [(*P, [5])]
    again.ask([0])
    again.found(0, valid(6, 8, 9), None, ended=True)
    given, passed = again.take(10, 1000)
    assert [one.sequence for one in given] == [6]
    assert [one.sequence for one in passed] == [8, 9], "these have come live"
    home.session.give(0, given)
    home.session.served(0)
    home.attach()
    assert sent(home) == [(3, 3), (5, 3), (6, GIVEN), (8, 0), (9, 0)]
    # What was given is not taken live, in a third life either.
    home.sync()
    home.crash()
    assert not home.session.serving
    assert len(admitted(chunk(5, 1), home.session.initials)) == 0
    assert len(admitted(chunk(7, 1), home.session.initials)) == 1


def test_one_that_is_closed_holds_nothing_up() -> None:
    home, _ = served(number=1)
    home.session.give(1, valid(3))
    home.session.push(chunk(8, 1))
    home.session.close(1)
    home.sync()
    assert sent(home) == [(3, GIVEN), (8, 0)]
    assert not home.session.serving
    home.session.check()


def test_how_much_is_given_at_once() -> None:
    home, _ = served(Durable(queue_messages=10))
    home.session.push(chunk(1000, 10))
    assert home.session.has_room(0), "what waits is live, and goes behind it"
    home.session.give(0, valid(*range(1, 600)))
    assert not home.session.has_room(0), "enough waits to be sent before that"
    home.session.detach(0)
    assert home.session.unsettled == 10, "nobody takes it, so the quota holds"
    assert not home.session.has_room(0)
    home.session.attach(100, 1)
    assert home.session.has_room(0)
    home.session.check()


def test_publishers_wait_for_what_is_before_theirs() -> None:
    home, _ = served()
    limit = home.flow.queue_messages
    position = home.session.push(chunk(10_000, limit))
    assert home.session.admits(position), "places that are free are no notifications"
    home.session.give(0, valid(1))
    assert not home.session.admits(position)
    home.session.served(0)
    home.sync()
    home.take()
    assert home.session.admits(position)
    home.session.check()


def test_ranges_that_are_put_in_at_once() -> None:
    ranges = Ranges([(1, 2), (9, 9), (20, 30)])
    ranges.add_all(5, 6)
    assert ranges.pairs() == [(1, 2), (5, 6), (9, 9), (20, 30)]
    ranges.add_all(3, 4)
    ranges.add_all(10, 19)
    assert ranges.pairs() == [(1, 6), (9, 30)]
    ranges.add_all(31, 31)
    ranges.add_all(7, 8)
    assert ranges.pairs() == [(1, 31)]
    ranges.check()


async def taken(subscription: Any, count: int) -> list[tuple[int, bool, bool]]:
    """Return (n, initial, redelivered) of so many."""
    some = [await anext(subscription) for _ in range(count)]
    return [(int(one.attributes["n"] or 0), one.initial, one.redelivered) for one in some]


@conversation
async def test_a_durable_subscription_is_given_what_is_valid_then_what_is_live() -> None:
    async with LocalCluster(connection_points=2) as local, local.connect("p", connection_point=1) as publisher:
        for n in (1, 2, 3):
            await publisher.publish({"n": n}, valid_for=60)
        async with durable(local) as client:
            subscription = await client.subscribe("n > 1", initial="valid")
            await publisher.publish({"n": 4}, valid_for=60)
            assert await taken(subscription, 3) == [(2, True, False), (3, True, False), (4, False, False)]
            cut(local, client)
            await publisher.publish({"n": 5})
            assert await taken(subscription, 1) == [(5, False, False)]
            await subscription.close()
            again = await client.subscribe("n > 3", initial="valid")
            assert await taken(again, 1) == [(4, True, False)]


@conversation
async def test_who_leaves_in_the_middle_is_owed_the_rest() -> None:
    options: dict[str, Any] = {"receive_window": 2, "manual_ack": True}
    async with LocalCluster(connection_points=2) as local, local.connect("p", connection_point=1) as publisher:
        for n in range(1, 1001):
            await publisher.publish({"n": n}, valid_for=60, ack="none" if n % 50 else "matched")
        async with durable(local, **options) as client:
            subscription = await client.subscribe("n > 0", initial="valid")
            one = await anext(subscription)
            await one.ack()
        await publisher.publish({"n": 1001})
        crash(local, Peer(CONNECTION_POINT, 0))
        await publisher.publish({"n": 1002})
        async with durable(local) as client:
            assert client.held == {0: "n > 0"}
            subscription = await client.take_up(0)
            got = await take(subscription, 1001)
            assert [n for n, _ in got] == list(range(2, 1003))
            assert sum(again for _, again in got) <= 2
            await until(lambda: gauge(local, "durable_bytes") < 100)
