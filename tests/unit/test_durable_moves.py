"""Durable sessions on their way to another connection point, on the real machines, where it is cut short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from cluster.client import Client
from cluster.messages import (
    CONNECTION_POINT,
    EXIT_POINT,
    BringSession,
    Deliver,
    DurableEnded,
    DurableHomes,
    DurableMoved,
    EpochEnd,
    FindHome,
    HandSession,
    KeepSession,
    Message,
    Peer,
    Relay,
)
from cluster.serving import handing
from cluster.sessions import Sessions
from cluster.testing import LocalCluster
from tests.unit.conversation import conversation
from tests.unit.test_durable_cluster import crash, durable, publish, take, until

LEAVER, OTHER = Peer(CONNECTION_POINT, 1), Peer(CONNECTION_POINT, 0)


class Tap:
    """What connection points tell each other about sessions; `at` has what is done at the first of a kind, and tells
    whether that goes on. held: what exit points send to the leaver, if that is to wait. lost: the connection point that
    hears nothing of it."""

    def __init__(self, local: LocalCluster) -> None:
        self.seen: list[Any] = []
        self.at: dict[type, Any] = {}
        self.held: list[tuple[Peer, Peer, Message]] | None = None
        self.lost = -1
        self.dropped = 0
        self._put = local._assembly._put
        local._assembly._put = self.put  # type: ignore[method-assign]

    def put(self, sender: Peer, receiver: Peer, message: Message) -> None:
        if isinstance(message, Relay) and sender.layer == CONNECTION_POINT:
            self.seen.append(message.content)
            if self.lost in message.receivers:
                self.dropped += 1
                return
            act = self.at.pop(type(message.content), None)
            if act is not None and not act():
                return
        if self.held is not None and sender.layer == EXIT_POINT and receiver == LEAVER:
            self.held.append((sender, receiver, message))
            return
        self._put(sender, receiver, message)

    def let_go(self) -> None:
        held, self.held = self.held, None
        for one in held or []:
            self._put(*one)


@asynccontextmanager
async def leaving(local: LocalCluster, **options: Any) -> AsyncIterator[tuple[Client, Client]]:
    """Yield a publisher, and a client whose session lives at the one that is to leave; three notifications wait."""
    async with local.connect("p") as publisher:
        async with durable(local, connection_point=1) as client:
            await client.subscribe("n > 0")
        await publish(publisher, 1, 2, 3)
        async with durable(local, **options) as client:
            yield publisher, client


async def finished(local: LocalCluster, publisher: Client, client: Client, first: int = 1) -> None:
    """Check that everything comes, once, and that the session lives at one place."""
    await publish(publisher, 4)
    subscription = await client.take_up(0)
    assert await take(subscription, 5 - first) == [(n, False) for n in range(first, 5)]
    await publish(publisher, 5)
    assert await take(subscription, 1) == [(5, False)]
    assert local.status()["durable_sessions"] == 1
    await until(lambda: sum(len(disk.read().sessions) for disk in local._assembly.session_disks.values()) == 1)


@conversation
async def test_a_session_of_many_pieces() -> None:
    async with LocalCluster(connection_points=2) as local, local.connect("p") as publisher:
        tap = Tap(local)
        with patch.object(handing, "PIECE_BYTES", 1000):
            async with durable(local, connection_point=1) as client:
                for n in range(20):
                    await client.subscribe(f"n > {n}")
            await publish(publisher, *range(1, 101))
            await local.admin.scale(connection_points=1)
        assert len([one for one in tap.seen if isinstance(one, BringSession)]) > 2
        assert len([one for one in tap.seen if isinstance(one, HandSession)]) > 5
        async with durable(local) as client:
            assert len(client.held) == 20
            subscription = await client.take_up(0)
            for number in range(1, 20):
                await (await client.take_up(number)).close()
            assert [n for n, _ in await take(subscription, 100)] == list(range(1, 101))


@conversation
async def test_a_wish_that_is_taken_back_leaves_the_session_where_it_is() -> None:
    async with LocalCluster(connection_points=2) as local, leaving(local) as (publisher, client):
        tap = Tap(local)
        tap.at[BringSession] = lambda: False  # lost
        operation = await local.admin.scale(connection_points=1, wait=False)
        await until(lambda: not tap.at)
        await local.admin.abort()
        assert (await local.admin.wait(operation["number"]))["state"] == "aborted"
        await until(lambda: any(isinstance(one, KeepSession) for one in tap.seen))
        await finished(local, publisher, client)
        homes = local._assembly.roles[LEAVER].machine.gauges()
        assert homes["durable_sessions"] == 1
        assert local._assembly.roles[OTHER].machine.gauges()["durable_arriving"] == 0


@conversation
async def test_nothing_is_handed_over_before_all_has_come_that_was_matched() -> None:
    async with LocalCluster(connection_points=2) as local, leaving(local) as (publisher, client):
        tap = Tap(local)
        tap.held = []
        publishing = asyncio.ensure_future(publish(publisher, 4))
        await until(lambda: any(isinstance(message, Deliver) for *_, message in tap.held or []))
        operation = await local.admin.scale(connection_points=1, wait=False)
        await until(lambda: any(isinstance(message, EpochEnd) for *_, message in tap.held or []))
        assert any(isinstance(one, BringSession) for one in tap.seen)
        assert not any(isinstance(one, HandSession) for one in tap.seen), "its last notification is on its way"
        tap.let_go()
        local._schedule()
        await publishing
        assert (await local.admin.wait(operation["number"]))["state"] == "done"
        await publish(publisher, 5)
        subscription = await client.take_up(0)
        assert await take(subscription, 5) == [(n, False) for n in range(1, 6)]


@conversation
async def test_another_takes_the_session_when_the_one_that_was_asked_has_left_as_well() -> None:
    async with LocalCluster(connection_points=3) as local, local.connect("p") as publisher:
        for client_id in ("a", "b"):  # one of them is brought to the connection point 2
            async with durable(local, client_id, connection_point=1) as client:
                await client.subscribe("n > 0")
            async with local.connect("other", connection_point=1):
                pass  # who is asked depends on the session's number
        await publish(publisher, 1, 2, 3)
        tap = Tap(local)
        tap.lost = 2
        await local.admin.scale(connection_points=1)
        assert tap.dropped
        await publish(publisher, 4)
        for client_id in ("a", "b"):
            async with durable(local, client_id) as client:
                assert await take(await client.take_up(0), 4) == [(n, False) for n in range(1, 5)]


async def crashed(peer: Peer, at: type) -> None:
    """A process dies at a message of the former home's, which is lost."""
    async with LocalCluster(connection_points=2) as local, leaving(local) as (publisher, client):
        tap = Tap(local)

        def die() -> bool:
            asyncio.get_running_loop().call_soon(crash, local, peer)
            return False

        tap.at[at] = die
        await local.admin.scale(connection_points=1, wait=False)
        await until(lambda: not tap.at)
        await until(lambda: local.status()["recovered"] == 1)
        # A step that was not decided is given up by the crash; it is wished for again.
        await until(lambda: not local.status()["recovery"])
        await local.admin.scale(connection_points=1)
        await finished(local, publisher, client)


@conversation
async def test_the_former_home_dies_while_it_brings() -> None:
    await crashed(LEAVER, BringSession)


@conversation
async def test_the_next_home_dies_while_it_is_brought() -> None:
    await crashed(OTHER, BringSession)


@conversation
async def test_the_former_home_dies_while_it_hands_over() -> None:
    await crashed(LEAVER, HandSession)


@conversation
async def test_the_next_home_dies_while_it_takes_over() -> None:
    await crashed(OTHER, HandSession)


def test_the_coordinator_knows_the_home_while_two_have_the_session() -> None:
    sessions = Sessions()
    sessions.durables(0, DurableHomes([], []))
    sessions.durables(1, DurableHomes(["lab"], []))
    asked = FindHome("lab", 3)
    assert sessions.home(0, asked, (0, 1)) == 1
    sessions.durables(0, DurableMoved("lab"))
    assert sessions.home(1, asked, (0, 1)) == 0
    sessions.durables(1, DurableHomes(["lab"], []))  # it has not heard of it yet, and its lane was down
    assert sessions.home(0, asked, (0, 1)) == 1
    sessions.durables(1, DurableEnded("lab"))
    assert sessions.home(1, asked, (0, 1)) == 0
    assert sessions.durable == 1
    sessions.durables(0, DurableEnded("lab"))
    assert sessions.durable == 0
