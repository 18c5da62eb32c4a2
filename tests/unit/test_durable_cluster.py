"""Durable sessions on the real machines: over connections, programs, crashes of the home, at other places."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cluster.client import Client, Policy, Subscription
from cluster.config import Config, Durable
from cluster.errors import ConfigError, ConnectionLostError, RefusedError, SessionError
from cluster.messages import CONNECTION_POINT, Peer
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation

HOME = Peer(CONNECTION_POINT, 0)
QUICK: dict[str, Any] = {"backoff_s": (0.0, 0.01)}


def durable(local: LocalCluster, client_id: str = "lab", **options: Any) -> Client:
    """Return a client with a durable session."""
    return local.connect(client_id, **({"durable": True} | QUICK | options))


def cut(local: LocalCluster, client: Client) -> None:
    """Lose the client's connection, as a network does."""
    assert client._link is not None
    assert client._link._transport is not None
    client._link._transport.abort()


def crash(local: LocalCluster, peer: Peer) -> None:
    """A connection point's process dies, and its sockets with it."""
    for key in [key for key in local._sockets if key[0] == peer]:
        local._sockets[key].cut()
    local._assembly.crash(peer)
    local._schedule()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it; the test's own timeout is the limit."""
    while not condition():
        await asyncio.sleep(0.001)


async def publish(client: Client, *values: int) -> None:
    for value in values:
        await client.publish({"n": value})


async def take(subscription: Subscription, count: int) -> list[tuple[int, bool]]:
    """Return (n, redelivered) of so many."""
    return [
        (int(one.attributes["n"] or 0), one.redelivered) for one in [await anext(subscription) for _ in range(count)]
    ]


def gauge(local: LocalCluster, name: str) -> int:
    roles = local._assembly.roles
    return sum(role.machine.gauges()[name] for peer, role in roles.items() if peer.layer == CONNECTION_POINT)


@conversation
async def test_what_is_published_while_nobody_is_connected_waits() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher:
        async with durable(local, expires=60) as client:
            subscription = await client.subscribe("n > 0")
            assert not client.resumed
            await publish(publisher, 1)
            assert await take(subscription, 1) == [(1, False)]
        # Goodbye acknowledges what the stream was not asked to go beyond? No: the last one comes again.
        await publish(publisher, 2, 3)
        assert gauge(local, "durable_queued") == 3
        async with durable(local) as client:
            assert client.resumed
            assert client.held == {0: "n > 0"}
            subscription = await client.subscribe("n > 0")
            assert client.held == {}
            assert subscription.id == 0
            assert await take(subscription, 3) == [(1, True), (2, False), (3, False)]
            await publish(publisher, 4)
            assert await take(subscription, 1) == [(4, False)]


@conversation
async def test_a_lost_connection_loses_and_doubles_nothing() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher, durable(local) as client:
        subscription = await client.subscribe("n > 0")
        await publish(publisher, 1, 2)
        assert await take(subscription, 1) == [(1, False)]
        await until(lambda: len(subscription._queue) == 1)
        cut(local, client)
        await publish(publisher, 3)
        assert await take(subscription, 2) == [(2, False), (3, False)]
        await until(lambda: client.reconnections == 1)
        await publish(publisher, 4)
        assert await take(subscription, 1) == [(4, False)]
        assert client.sessions_lost == 0


@conversation
async def test_a_crash_of_the_home_loses_and_doubles_nothing() -> None:
    async with (
        LocalCluster(connection_points=2) as local,
        local.connect("p", connection_point=1) as publisher,
        durable(local) as client,
    ):
        subscription = await client.subscribe("n > 0")
        await publish(publisher, 1, 2)
        assert await take(subscription, 1) == [(1, False)]
        crash(local, HOME)
        await publish(publisher, 3, 4)
        assert await take(subscription, 3) == [(2, False), (3, False), (4, False)]
        assert client.sessions_lost == 0
        assert local.status()["durable_sessions"] == 1


@conversation
async def test_a_crash_of_the_home_while_the_program_is_away() -> None:
    async with LocalCluster(connection_points=2) as local, local.connect("p", connection_point=1) as publisher:
        async with durable(local) as client:
            await client.subscribe("n > 0")
        await publish(publisher, 1, 2)
        crash(local, HOME)
        await publish(publisher, 3)
        async with durable(local) as client:
            subscription = await client.subscribe("n > 0")
            assert await take(subscription, 3) == [(1, False), (2, False), (3, False)]


@conversation
async def test_a_client_is_sent_to_where_its_session_lives() -> None:
    async with LocalCluster(connection_points=3) as local, local.connect("p", connection_point=2) as publisher:
        async with durable(local) as client:
            await client.subscribe("n > 0")
        await publish(publisher, 1)
        async with durable(local, connection_point=1) as client:
            subscription = await client.subscribe("n > 0")
            assert await take(subscription, 1) == [(1, False)]
            local._assembly.restart_coordinator()
            local._schedule()
            cut(local, client)
            await publish(publisher, 2)
            assert await take(subscription, 1) == [(2, False)]
        assert local.status()["durable_sessions"] == 1
        async with durable(local, connection_point=2) as client:
            assert client.resumed


@conversation
async def test_acknowledgements_by_hand() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher, durable(local, manual_ack=True) as client:
        subscription = await client.subscribe("n > 0")
        await publish(publisher, 1, 2, 3, 4, 5)
        got = [await anext(subscription) for _ in range(5)]
        assert [one.position for one in got] == [1, 2, 3, 4, 5]
        await got[2].ack()
        await got[1].ack(upto=True)
        await until(lambda: gauge(local, "durable_bytes") < 160)
        cut(local, client)
        assert await take(subscription, 2) == [(4, True), (5, True)]
        await got[4].ack(upto=True)
        await until(lambda: gauge(local, "durable_bytes") == 0)


@conversation
async def test_what_is_refused_comes_again_and_in_the_end_is_a_dead_letter() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher, durable(local, max_deliver=3) as client:
        subscription = await client.subscribe("n > 0")
        await publish(publisher, 1, 2)
        seen = []
        async for one in subscription:
            seen.append((one.attributes["n"], one.redelivered))
            if one.attributes["n"] == 1:
                await one.refuse()
            if len(seen) == 4:
                break
        assert sorted(seen) == [(1, False), (1, True), (1, True), (2, False)]
        await until(lambda: subscription.dropped == {"max_deliver": 1})
        (letter,) = local._assembly.session_disks[HOME].dead_letters
        assert b'"client_id":"lab"' in letter
        await publish(publisher, 3)
        assert await take(subscription, 1) == [(3, False)]
        await until(lambda: gauge(local, "durable_bytes") < 80)
        assert gauge(local, "dead_letters") == 1


@conversation
async def test_the_quota_is_counted_and_told() -> None:
    config = Config(durable=Durable(queue_messages=3))
    async with LocalCluster(config=config) as local, local.connect("p") as publisher:
        async with durable(local) as client:
            await client.subscribe("n > 0")
        await publish(publisher, *range(1, 8))
        assert gauge(local, "dropped") == 4
        async with durable(local) as client:
            subscription = await client.subscribe("n > 0")
            assert await take(subscription, 3) == [(5, False), (6, False), (7, False)]
            assert client.dropped == {"quota": 4}


@conversation
async def test_a_session_expires_with_its_subscriptions() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher:
        async with durable(local, expires=1) as client:
            await client.subscribe("n > 0")
        await publish(publisher, 1)
        assert gauge(local, "durable_sessions") == 1
        await until(lambda: gauge(local, "durable_sessions") == 0)
        assert (gauge(local, "subscriptions"), gauge(local, "durable_bytes")) == (0, 0)
        await until(lambda: local._assembly.session_disks[HOME].read().sessions == [])
        async with durable(local) as client:
            assert (client.resumed, client.held) == (False, {})
        assert local.status()["durable_sessions"] == 1


@conversation
async def test_a_session_that_is_ended_is_gone() -> None:
    async with LocalCluster() as local:
        client = await durable(local)
        await client.subscribe("n > 0")
        await client.close(end_session=True)
        await until(lambda: local.status()["durable_sessions"] == 0)
        async with durable(local) as client:
            assert not client.resumed


@conversation
async def test_a_session_that_is_lost_is_begun_anew_and_says_so() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher, durable(local) as client:
        subscription = await client.subscribe("n > 0")
        await publish(publisher, 1)
        one = await anext(subscription)
        local._assembly.session_disks[HOME]._sessions.clear()
        crash(local, HOME)
        await until(lambda: client.sessions_lost == 1)
        await until(lambda: gauge(local, "subscriptions") == 1)
        await publish(publisher, 2)
        assert await take(subscription, 1) == [(2, False)]
        with pytest.raises(SessionError, match="has ended"):
            await one.ack()


@conversation
async def test_subscriptions_are_taken_up_closed_and_grouped() -> None:
    async with LocalCluster() as local, local.connect("p") as publisher:
        async with durable(local) as client:
            await client.subscribe("n > 0")
            await client.subscribe("n > 10")
            await client.subscribe("n > 20")
        await publish(publisher, 5, 15, 25)
        async with durable(local) as client:
            await until(lambda: client._protocol.delivery.received == 3)
            assert client.held == {0: "n > 0", 1: "n > 10", 2: "n > 20"}
            last = await client.take_up(2)
            assert (last.id, last.filter) == (2, "n > 20")
            assert await take(last, 1) == [(25, False)]
            await last.close()
            group = await client.subscribe_many(["n > 10", "n > 1", "n > 0"])
            assert group.ids == (1, 3, 0)
            got = await group.take()
            assert [one.attributes["n"] for one in got] == [5, 15, 25]
            with pytest.raises(RefusedError, match="not among"):
                await client.take_up(2)
        async with durable(local) as client:
            assert sorted(client.held) == [0, 1, 3]


@conversation
async def test_a_connection_point_that_leaves_hands_over_its_durable_sessions() -> None:
    async with LocalCluster(connection_points=2) as local, local.connect("p") as publisher:
        async with durable(local, "away", connection_point=1) as client:
            await client.subscribe("n > 1")
        async with durable(local, connection_point=1) as client:
            subscription = await client.subscribe("n > 0")
            await publish(publisher, 1, 2)
            assert await take(subscription, 1) == [(1, False)]
            await local.admin.scale(connection_points=1)
            await publish(publisher, 3)
            assert await take(subscription, 2) == [(2, False), (3, False)]
            await client.close()
        assert local.status()["durable_sessions"] == 2
        assert not local._assembly.session_disks[Peer(CONNECTION_POINT, 1)].read().sessions
        async with durable(local, "away") as client:
            assert client.held == {0: "n > 1"}
            subscription = await client.take_up(0)
            assert await take(subscription, 2) == [(2, False), (3, False)]


@conversation
async def test_what_cannot_be_asked_for() -> None:
    async with LocalCluster(config=Config(durable=Durable(sessions=1, expires_s=5, expires_s_max=10))) as local:
        with pytest.raises(ConnectionLostError, match="expires is 11 s, the limit is 10 s") as caught:
            await durable(local, expires=11)
        assert caught.value.code == "durable"
        async with durable(local) as client:
            with pytest.raises(ConnectionLostError, match="1 durable sessions live here"):
                await durable(local, "other")
            with pytest.raises(RefusedError, match="policy 'drop_newest', a durable session knows block, drop_oldest"):
                await client.subscribe("n > 0", policy="drop_newest")
            await client.close(end_session=True)
        async with durable(local, "other") as client, local.connect("p") as plain:
            subscription = await plain.subscribe("n > 0")
            await publish(client, 1)
            one = await anext(subscription)
            assert (one.position, one.redelivered) == (0, False)
            with pytest.raises(SessionError, match="durable"):
                await one.ack()
    for options, text in (
        ({"durable": True}, "client_id"),
        ({"client_id": "a", "expires": 5}, "durable is False"),
        ({"client_id": "a", "durable": True, "expires": 0}, "expires is 0"),
        ({"client_id": "a", "durable": True, "max_deliver": -1}, "max_deliver is -1"),
    ):
        with pytest.raises(ConfigError, match=text):
            Client([lambda _: asyncio.sleep(0)], **options)  # type: ignore[arg-type, list-item, return-value]


@conversation
async def test_everything_stops_and_comes_back() -> None:
    """As `kittiwake up` on the same data directory: only what is on disk is left."""
    async with LocalCluster() as local, local.connect("p") as publisher:
        async with durable(local) as client:
            await client.subscribe("n > 0")
        await publish(publisher, 1, 2)
        disks = local._assembly.session_disks
    async with LocalCluster() as local:
        crash(local, HOME)  # comes again with the former disk
        await until(lambda: HOME in local._assembly.serving)
        local._assembly.session_disks.update(disks)
        crash(local, HOME)
        await until(lambda: gauge(local, "durable_sessions") == 1)
        async with local.connect("p", **QUICK) as publisher:
            await publish(publisher, 3)
        async with durable(local) as client:
            subscription = await client.subscribe("n > 0")
            assert await take(subscription, 3) == [(1, False), (2, False), (3, False)]


async def slow(policy: Policy) -> tuple[list[int], int]:
    """Publish 101 to a client with little room while it is connected; return what came and how many were dropped."""
    config = Config(durable=Durable(queue_messages=20))
    async with (
        LocalCluster(config=config) as local,
        local.connect("p") as publisher,
        durable(local, receive_window=2) as client,
    ):
        subscription = await client.subscribe("n > 0", policy=policy)
        await publisher.publish_many(({"n": value} for value in range(1, 101)), ack="none")
        await until(lambda: gauge(local, "accepted") == 100)
        got: list[int] = []
        published = asyncio.create_task(publisher.publish({"n": 1000}))
        while not got or got[-1] != 1000:
            got.append(int((await anext(subscription)).attributes["n"] or 0))
        await published
        assert got == sorted(got)
        return got, sum(client.dropped.values())


@conversation
async def test_block_loses_nothing_while_connected() -> None:
    assert await slow("block") == ([*range(1, 101), 1000], 0)


@conversation
async def test_drop_oldest_drops_while_connected() -> None:
    got, dropped = await slow("drop_oldest")
    assert dropped == 101 - len(got) > 50
